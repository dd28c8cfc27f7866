// What is hard for an allocator that is preloaded: blocks before main and in destructors, threads that come and go and leave their blocks
// to others, and forks while threads allocate. Usage: alloc_forks FORKS. Ends with the first child that hangs.
// Prints how many children hung or crashed, and how many blocks held what was written to them.
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

// A child that has not ended after so many seconds hangs: a machine may have much else to do.
enum { THREADS = 3, BLOCKS = 64, GUARD = 300 };

static volatile int ends;
static char *early;

__attribute__((constructor)) static void before(void) {
    early = malloc(5000);
    memset(early, 'e', 5000);
}

__attribute__((destructor)) static void after(void) {
    char *late = realloc(early, 50000);
    // Nothing is printed where the block has not kept its bytes.
    if (late && late[4999] == 'e')
        (void)write(1, "late\n", 5);
    free(late);
}

static unsigned next(unsigned *state) {
    return (*state = *state * 1103515245 + 12345) >> 8;
}

static void *allocates(void *seed) {
    unsigned state = (unsigned)(long)seed;
    void *blocks[BLOCKS] = {0};
    while (!ends) {
        unsigned i = next(&state) % BLOCKS;
        free(blocks[i]);
        size_t bytes = 1 + (next(&state) % 2 ? next(&state) % 3000 : next(&state) % 1900000);
        blocks[i] = malloc(bytes);
        memset(blocks[i], 1, bytes < 64 ? bytes : 64);
    }
    for (int i = 0; i < BLOCKS; i++)
        free(blocks[i]);
    return NULL;
}

// A thread that ends with a block that another thread reads and frees.
static void *leaves(void *unused) {
    (void)unused;
    char *block = malloc(100000);
    memset(block, 'x', 100000);
    return block;
}

static int came_and_went(void) {
    pthread_t thread;
    void *block;
    if (pthread_create(&thread, NULL, leaves, NULL) || pthread_join(thread, &block))
        return 0;
    int kept = ((char *)block)[99999] == 'x';
    free(block);
    return kept;
}

static void child(void) {
    alarm(GUARD);
    for (int i = 1; i < 40; i++) {
        char *block = malloc(1000 * i);
        memset(block, 2, 1000 * i);
        if (i % 3)
            free(block);
    }
    _exit(!came_and_went());
}

int main(int count, char **words) {
    int forks = count > 1 ? atoi(words[1]) : 100;
    int hung = 0, crashed = 0, kept = 0;
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, allocates, (void *)(i + 1));
    for (int i = 0; i < forks && !hung; i++) {
        pid_t pid = fork();
        if (pid == 0)
            child();
        int status = 0;
        waitpid(pid, &status, 0);
        if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
            hung++;
        else if (status != 0)
            crashed++;
        kept += came_and_went();
    }
    ends = 1;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    printf("hung %d, crashed %d, kept %d\n", hung, crashed, kept);
    fflush(stdout);
    return hung || crashed || kept != forks;
}
