// Allocates once its libraries are loaded. As a library (-DLIBRARY) it takes half a second to be loaded.
#include <stdlib.h>
#include <unistd.h>

#ifdef LIBRARY
__attribute__((constructor)) static void load(void) { usleep(500000); }
#else
int main(void) {
    volatile char *table = malloc(8 << 20);
    for (int at = 0; at < 8 << 20; at += 4096)
        table[at] = 1;
    usleep(200000);
    return 0;
}
#endif
