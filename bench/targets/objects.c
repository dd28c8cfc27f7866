/* objects COUNT BYTES SECONDS: COUNT live heap objects of BYTES each, all touched; then idles. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int count, char **arguments)
{
    if (count != 4) {
        fprintf(stderr, "usage: %s COUNT BYTES SECONDS\n", arguments[0]);
        return 2;
    }
    size_t objects = strtoull(arguments[1], NULL, 10), bytes = strtoull(arguments[2], NULL, 10);
    char **all = malloc(objects * sizeof *all);
    for (size_t i = 0; all && i < objects; i++) {
        all[i] = malloc(bytes);
        if (!all[i])
            return 1;
        all[i][0] = 1;
    }
    if (!all)
        return 1;
    usleep((useconds_t)(strtod(arguments[3], NULL) * 1e6));
    size_t sum = 0;
    for (size_t i = 0; i < objects; i++) {
        sum += (size_t)all[i][0];
        free(all[i]);
    }
    free(all);
    return sum == objects ? 0 : 1;
}
