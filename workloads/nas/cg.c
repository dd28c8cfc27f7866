/*
 * cg: conjugate gradients on a random sparse symmetric matrix with a dominant diagonal. Indirect reads
 * over the whole vector, streaming reads of the matrix. The solution is known: all ones.
 */
#include "nas.h"
#include <math.h>

enum { HALF = 12 };

static size_t n;
static size_t *row;
static uint32_t *column;
static double *value;

/* Row i is joined with i +- step for steps that depend on the pair's lower row only: symmetric. */
static size_t step_of(size_t k)
{
    return 1 + mix(k * 977 + 13) % (n / 2 - 1);
}

static void make_matrix(void)
{
    size_t width = 2 * HALF + 1;
    row = allocate((n + 1) * sizeof *row);
    column = allocate(n * width * sizeof *column);
    value = allocate(n * width * sizeof *value);
    size_t steps[HALF];
    for (size_t k = 0; k < HALF; k++)
        steps[k] = step_of(k);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i <= n; i++) {
        row[i] = i * width;
        if (i == n)
            continue;
        double sum = 0;
        for (size_t k = 0; k < HALF; k++) {
            size_t up = (i + steps[k]) % n, down = (i + n - steps[k]) % n, at = row[i] + 2 * k;
            column[at] = (uint32_t)up;
            value[at] = -unit(i * HALF + k);
            column[at + 1] = (uint32_t)down;
            value[at + 1] = -unit(down * HALF + k);
            sum -= value[at] + value[at + 1];
        }
        column[row[i] + 2 * HALF] = (uint32_t)i;
        value[row[i] + 2 * HALF] = sum + 0.1;
    }
}

static void multiply(const double *x, double *y)
{
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++) {
        double sum = 0;
        for (size_t k = row[i]; k < row[i + 1]; k++)
            sum += value[k] * x[column[k]];
        y[i] = sum;
    }
}

static double dot(const double *x, const double *y)
{
    double part[BLOCKS], sum = 0;
#pragma omp parallel for schedule(static)
    for (size_t b = 0; b < BLOCKS; b++) {
        double s = 0;
        for (size_t i = b * n / BLOCKS; i < (b + 1) * n / BLOCKS; i++)
            s += x[i] * y[i];
        part[b] = s;
    }
    for (size_t b = 0; b < BLOCKS; b++)
        sum += part[b];
    return sum;
}

int main(int count, char **arguments)
{
    struct options options = parse_options(count, arguments);
    n = pick(&options, 20000, 200000, 1000000);
    make_matrix();
    double *x = allocate(n * sizeof *x), *r = allocate(n * sizeof *r), *p = allocate(n * sizeof *p);
    double *q = allocate(n * sizeof *q), *right = allocate(n * sizeof *right);
    for (size_t i = 0; i < n; i++)
        x[i] = 1;
    multiply(x, right);
    size_t times = rounds(&options, 1.3 * 200000 / (double)n);
    double error = 0;
    for (size_t round = 0; round < times; round++) {
        memset(x, 0, n * sizeof *x);
        memcpy(r, right, n * sizeof *r);
        memcpy(p, right, n * sizeof *p);
        double rho = dot(r, r);
        for (size_t iteration = 0; iteration < 60; iteration++) {
            multiply(p, q);
            double alpha = rho / dot(p, q);
#pragma omp parallel for schedule(static)
            for (size_t i = 0; i < n; i++) {
                x[i] += alpha * p[i];
                r[i] -= alpha * q[i];
            }
            double next = dot(r, r), beta = next / rho;
            rho = next;
#pragma omp parallel for schedule(static)
            for (size_t i = 0; i < n; i++)
                p[i] = r[i] + beta * p[i];
        }
        error = 0;
        for (size_t i = 0; i < n; i++)
            error = fmax(error, fabs(x[i] - 1));
    }
    printf("cg: %zu unknowns, %zu solves, error below 1e-4: %s\n", n, times, error < 1e-4 ? "yes" : "no");
    int code = finish(&options, "cg", error < 1e-4);
    free(x); free(r); free(p); free(q); free(right); free(row); free(column); free(value);
    return code;
}
