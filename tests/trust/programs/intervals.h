// Waiting for the recorder of a program that runs in the folder in which its trace is made.
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

// How often intervals were flushed into a trace.
__attribute__((unused)) static int flushed(const char *trace) {
    char path[512];
    int count = 0;
    snprintf(path, sizeof path, "%s/parts", trace);
    DIR *parts = opendir(path);
    if (!parts) return 0;
    for (struct dirent *part; (part = readdir(parts));) {
        size_t length = strlen(part->d_name);
        count += !strncmp(part->d_name, "intervals-", 10) && length > 8 && !strcmp(part->d_name + length - 8, ".parquet");
    }
    closedir(parts);
    return count;
}

// Waits until an interval of a trace has begun and ended; not at all without one. The first flush may have only older ones, and the second
// begins with one that runs now.
__attribute__((unused)) static void an_interval_ends(const char *trace) {
    if (!trace) return;
    // The recorder may be gone.
    alarm(300);
    for (int before = flushed(trace); flushed(trace) < before + 3;) usleep(1000);
    alarm(0);
}
