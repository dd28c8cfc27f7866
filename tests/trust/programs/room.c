// room: has objects in its heap and one in a mapping of its own, and prints how many pages of address space it has.
#include <stdio.h>
#include <stdlib.h>

int main(void) {
    void *volatile small = malloc(100), *volatile large = malloc(20000), *volatile mapped = malloc(1 << 20);
    unsigned long pages;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!small || !large || !mapped || !file || fscanf(file, "%lu", &pages) != 1)
        return 1;
    printf("%lu\n", pages);
    return 0;
}
