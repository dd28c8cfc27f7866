/*
 * mg: multigrid V-cycles for the Poisson equation on a periodic cube: stencils over grids of falling
 * size. The residual must fall in every cycle.
 */
#include "nas.h"
#include <math.h>

enum { LEVELS = 12 };

static double *u[LEVELS], *f[LEVELS], *r[LEVELS];
static size_t side[LEVELS];

#define AT(g, n, i, j, k) ((g)[(((i) & ((n)-1)) * (n) + ((j) & ((n)-1))) * (n) + ((k) & ((n)-1))])

static double neighbours(const double *g, size_t n, size_t i, size_t j, size_t k)
{
    return AT(g, n, i + 1, j, k) + AT(g, n, i - 1, j, k) + AT(g, n, i, j + 1, k) + AT(g, n, i, j - 1, k)
         + AT(g, n, i, j, k + 1) + AT(g, n, i, j, k - 1);
}

static void residual(size_t level)
{
    size_t n = side[level];
    double h2 = 1.0 / ((double)n * (double)n);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++)
            for (size_t k = 0; k < n; k++)
                AT(r[level], n, i, j, k) = AT(f[level], n, i, j, k)
                    - (6 * AT(u[level], n, i, j, k) - neighbours(u[level], n, i, j, k)) / h2;
}

/* Damped Jacobi: u += w * h^2/6 * r, twice as cheap to get right in parallel as Gauss-Seidel. */
static void smooth(size_t level, size_t times)
{
    size_t n = side[level];
    double w = 0.8 / 6 / ((double)n * (double)n);
    for (size_t t = 0; t < times; t++) {
        residual(level);
#pragma omp parallel for schedule(static)
        for (size_t i = 0; i < n * n * n; i++)
            u[level][i] += w * r[level][i];
    }
}

static void cycle(size_t level)
{
    smooth(level, 2);
    if (side[level] <= 4)
        return smooth(level, 20);
    residual(level);
    size_t n = side[level], m = n / 2;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < m; j++)
            for (size_t k = 0; k < m; k++) {
                double sum = 0;
                for (size_t c = 0; c < 8; c++)
                    sum += AT(r[level], n, 2 * i + (c & 1), 2 * j + (c >> 1 & 1), 2 * k + (c >> 2));
                AT(f[level + 1], m, i, j, k) = sum / 8;
                AT(u[level + 1], m, i, j, k) = 0;
            }
    cycle(level + 1);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++)
            for (size_t k = 0; k < n; k++)
                AT(u[level], n, i, j, k) += AT(u[level + 1], m, i / 2, j / 2, k / 2);
    smooth(level, 2);
}

static double norm(void)
{
    residual(0);
    size_t cells = side[0] * side[0] * side[0];
    double part[BLOCKS], sum = 0;
#pragma omp parallel for schedule(static)
    for (size_t b = 0; b < BLOCKS; b++) {
        double s = 0;
        for (size_t i = b * cells / BLOCKS; i < (b + 1) * cells / BLOCKS; i++)
            s += r[0][i] * r[0][i];
        part[b] = s;
    }
    for (size_t b = 0; b < BLOCKS; b++)
        sum += part[b];
    return sqrt(sum / (double)cells);
}

int main(int count, char **arguments)
{
    struct options options = parse_options(count, arguments);
    size_t n = pick(&options, 32, 128, 256), levels = 0;
    for (size_t s = n; s >= 4; s /= 2, levels++) {
        side[levels] = s;
        u[levels] = calloc(s * s * s, sizeof(double));
        f[levels] = calloc(s * s * s, sizeof(double));
        r[levels] = calloc(s * s * s, sizeof(double));
        if (!u[levels] || !f[levels] || !r[levels])
            return fputs("mg: no memory\n", stderr), 1;
    }
    /* Twenty point charges, in pairs, so that they sum to zero. */
    for (size_t i = 0; i < 20; i++)
        f[0][mix(i) % (n * n * n)] += i % 2 ? -1.0 : 1.0;
    double before = norm(), first = before;
    size_t times = rounds(&options, 2.8 * (128.0 * 128 * 128) / (double)(n * n * n));
    bool falls = true;
    for (size_t i = 0; i < times; i++) {
        cycle(0);
        double after = norm();
        falls = falls && (after < before || after < first * 1e-8);
        before = after;
    }
    printf("mg: %zu^3 cells, %zu cycles, residual %.6e of %.6e\n", n, times, before, first);
    int code = finish(&options, "mg", falls && before < first);
    for (size_t i = 0; i < levels; i++) {
        free(u[i]);
        free(f[i]);
        free(r[i]);
    }
    return code;
}
