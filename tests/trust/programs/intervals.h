// Waiting for the recorder of a program that runs in the folder in which its trace is made.
#include <dirent.h>
#include <string.h>
#include <unistd.h>

// How often intervals were flushed into the trace.
static int flushed(void) {
    int count = 0;
    DIR *parts = opendir("trace.varve/parts");
    if (!parts) return 0;
    for (struct dirent *part; (part = readdir(parts));) {
        size_t length = strlen(part->d_name);
        count += !strncmp(part->d_name, "intervals-", 10) && length > 8 && !strcmp(part->d_name + length - 8, ".parquet");
    }
    closedir(parts);
    return count;
}

// Waits until an interval has begun and ended. The first flush may have only older ones, and the second begins with one that runs now.
static void an_interval_ends(void) {
    // The recorder may be gone.
    alarm(300);
    for (int before = flushed(); flushed() < before + 3;) usleep(1000);
    alarm(0);
}
