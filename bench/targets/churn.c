/* churn COUNT ALIVE BYTES: COUNT heap objects of BYTES each, each in the place of an earlier one of ALIVE. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **arguments)
{
    if (count != 4) {
        fprintf(stderr, "usage: %s COUNT ALIVE BYTES\n", arguments[0]);
        return 2;
    }
    uint64_t births = strtoull(arguments[1], NULL, 10), random = 88172645463325252u;
    size_t alive = strtoull(arguments[2], NULL, 10), bytes = strtoull(arguments[3], NULL, 10);
    char **all = calloc(alive, sizeof *all);
    if (!all || !alive || !bytes)
        return 2;
    for (uint64_t i = 0; i < births; i++) {
        /* xorshift */
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        char **place = &all[random % alive];
        free(*place);
        *place = malloc(bytes);
        if (!*place)
            return 1;
        **place = 1;
    }
    for (size_t i = 0; i < alive; i++)
        free(all[i]);
    free(all);
    return 0;
}
