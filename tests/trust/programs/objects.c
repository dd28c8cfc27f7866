// Many objects, so that putting the trace in order takes a while; then says that it ends: `objects COUNT FILE`
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

int main(int count, char **words) {
    if (count < 3)
        return 2;
    long objects = atol(words[1]);
    for (long i = 0; i < objects; i++) {
        volatile char *block = malloc(4096);
        block[0] = 1;
        free((void *)block);
    }
    close(open(words[2], O_WRONLY | O_CREAT, 0600));
    return 0;
}
