// Has a file mapped as code for a while, without looking at it: `holds FILE`
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int count, char **words) {
    int file = count > 1 ? open(words[1], O_RDONLY) : -1;
    if (file < 0 || mmap(0, 1 << 20, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0) == MAP_FAILED)
        return 2;
    usleep(300000);
    return 0;
}
