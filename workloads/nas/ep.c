/* ep: pairs of Gaussian deviates by the polar method, counted by square ring: computation, hardly any memory. */
#include "nas.h"
#include <math.h>

enum { RINGS = 10 };

int main(int count, char **arguments)
{
    struct options options = parse_options(count, arguments);
    size_t pairs = pick(&options, 1 << 18, 1 << 20, 1 << 22);
    size_t times = rounds(&options, 70 * (double)(1 << 20) / (double)pairs);
    uint64_t rings[RINGS] = { 0 }, accepted = 0;
    double sum_x[BLOCKS] = { 0 }, sum_y[BLOCKS] = { 0 }, square[BLOCKS] = { 0 };
    for (size_t round = 0; round < times; round++) {
#pragma omp parallel for schedule(static) reduction(+ : rings[:RINGS], accepted)
        for (size_t b = 0; b < BLOCKS; b++) {
            for (size_t i = b * pairs / BLOCKS; i < (b + 1) * pairs / BLOCKS; i++) {
                uint64_t seed = 2 * (round * pairs + i);
                double x = 2 * unit(seed) - 1, y = 2 * unit(seed + 1) - 1, t = x * x + y * y;
                if (t > 1 || t == 0)
                    continue;
                double scale = sqrt(-2 * log(t) / t);
                x *= scale;
                y *= scale;
                size_t ring = (size_t)fmax(fabs(x), fabs(y));
                rings[ring < RINGS ? ring : RINGS - 1]++;
                accepted++;
                sum_x[b] += x;
                sum_y[b] += y;
                square[b] += x * x + y * y;
            }
        }
    }
    double x = 0, y = 0, variance = 0;
    for (size_t b = 0; b < BLOCKS; b++) {
        x += sum_x[b];
        y += sum_y[b];
        variance += square[b];
    }
    variance /= 2.0 * (double)accepted;
    double share = (double)accepted / (double)(pairs * times), limit = 6 / sqrt((double)accepted);
    printf("ep: %zu rounds of %zu pairs, accepted %llu\nep: rings", times, pairs, (unsigned long long)accepted);
    for (size_t i = 0; i < RINGS; i++)
        printf(" %llu", (unsigned long long)rings[i]);
    printf("\nep: sums %.9e %.9e, variance %.9f\n", x, y, variance);
    /* A standard normal sample: share pi/4, mean 0, variance 1. */
    bool good = fabs(share - M_PI / 4) < limit && fabs(variance - 1) < limit
             && fabs(x) / (double)accepted < limit && fabs(y) / (double)accepted < limit;
    return finish(&options, "ep", good);
}
