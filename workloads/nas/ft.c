/*
 * ft: a two-dimensional complex FFT, forward and back, by rows and transposes: long strides between
 * streams. The result must be what it started with.
 */
#include "nas.h"
#include <math.h>

struct complex {
    double re, im;
};

static size_t n;
static struct complex *twiddle;

static void fft_row(struct complex *x, double sign)
{
    for (size_t i = 1, j = 0; i < n; i++) {
        size_t bit = n >> 1;
        for (; j & bit; bit >>= 1)
            j ^= bit;
        j ^= bit;
        if (i < j) {
            struct complex other = x[i];
            x[i] = x[j];
            x[j] = other;
        }
    }
    for (size_t length = 2; length <= n; length <<= 1) {
        size_t step = n / length, half = length / 2;
        for (size_t i = 0; i < n; i += length) {
            for (size_t k = 0; k < half; k++) {
                struct complex w = twiddle[k * step], a = x[i + k], b = x[i + k + half];
                w.im *= sign;
                struct complex t = { b.re * w.re - b.im * w.im, b.re * w.im + b.im * w.re };
                x[i + k] = (struct complex){ a.re + t.re, a.im + t.im };
                x[i + k + half] = (struct complex){ a.re - t.re, a.im - t.im };
            }
        }
    }
}

static void transpose(const struct complex *from, struct complex *to)
{
    enum { TILE = 16 };
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i += TILE)
        for (size_t j = 0; j < n; j += TILE)
            for (size_t a = i; a < i + TILE; a++)
                for (size_t b = j; b < j + TILE; b++)
                    to[b * n + a] = from[a * n + b];
}

static void rows(struct complex *grid, double sign)
{
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++)
        fft_row(grid + i * n, sign);
}

int main(int count, char **arguments)
{
    struct options options = parse_options(count, arguments);
    n = pick(&options, 256, 2048, 4096);
    struct complex *grid = allocate(n * n * sizeof *grid), *other = allocate(n * n * sizeof *other);
    twiddle = allocate(n / 2 * sizeof *twiddle);
    for (size_t i = 0; i < n / 2; i++)
        twiddle[i] = (struct complex){ cos(2 * M_PI * (double)i / (double)n), sin(2 * M_PI * (double)i / (double)n) };
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++)
            grid[i * n + j] = (struct complex){ unit(i * n + j), 0 };
    size_t times = rounds(&options, 5.5 * (2048.0 * 2048) / (double)(n * n));
    double error = 0;
    for (size_t round = 0; round < times; round++) {
        rows(grid, -1);
        transpose(grid, other);
        rows(other, -1);
        rows(other, 1);
        transpose(other, grid);
        rows(grid, 1);
        double scale = 1.0 / ((double)n * (double)n), worst[BLOCKS] = { 0 };
#pragma omp parallel for schedule(static)
        for (size_t b = 0; b < BLOCKS; b++) {
            for (size_t i = b * n * n / BLOCKS; i < (b + 1) * n * n / BLOCKS; i++) {
                grid[i].re *= scale;
                grid[i].im *= scale;
                worst[b] = fmax(worst[b], fabs(grid[i].re - unit(i)) + fabs(grid[i].im));
            }
        }
        for (size_t b = 0; b < BLOCKS; b++)
            error = fmax(error, worst[b]);
    }
    printf("ft: %zu x %zu, %zu rounds, error below 1e-9: %s\n", n, n, times, error < 1e-9 ? "yes" : "no");
    int code = finish(&options, "ft", error < 1e-9);
    free(grid); free(other); free(twiddle);
    return code;
}
