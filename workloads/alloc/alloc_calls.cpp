// Calls every entry point of an allocator a known number of times, in all the situations in which a library that stands in front of it must not be
// noticed, and prints what came of it.
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

constexpr int count = 1000;

struct BeforeMain {
    char* block = static_cast<char*>(std::malloc(64));
    BeforeMain() { std::strcpy(block, "before main"); }
    ~BeforeMain() { std::free(block); }
} before_main;

struct ThreadEnds {
    char* block = new char[48];
    ~ThreadEnds() { delete[] block; }
};
thread_local ThreadEnds thread_ends;

struct alignas(128) Wide {
    char bytes[256];
};

void* thread(void* old) {
    std::free(old);
    thread_ends.block[0] = 'x';
    return std::malloc(77);
}

volatile sig_atomic_t handled;
void handler(int) {
    // Not allowed to programs, and done by them.
    std::free(std::malloc(33));
    handled = handled + 1;
}

template <class Make> void fill(Make make) {
    void* blocks[count];
    for (int i = 0; i < count; i++) {
        blocks[i] = make(i);
        std::memset(blocks[i], i, 8);
    }
    for (void* block : blocks) std::free(block);
}

} // namespace

int main() {
    fill([](int i) { return std::malloc(16 + i % 50); });
    fill([](int i) { return std::calloc(1 + i % 3, 24); });
    fill([](int i) { return std::realloc(std::malloc(24), 64 + i); });
    fill([](int i) { return reallocarray(nullptr, 3, 16 + i % 9); });
    fill([](int) { return std::aligned_alloc(64, 128); });
    fill([](int) { return memalign(32, 96); });
    fill([](int) { return valloc(10); });
    fill([](int) { return pvalloc(10); });
    fill([](int) {
        void* block = nullptr;
        return posix_memalign(&block, 64, 200) ? nullptr : block;
    });
    unsigned long usable = 0;
    for (int i = 0; i < count; i++) {
        int* one = new int(i);
        char* many = new char[40];
        Wide* wide = new Wide;
        char* quiet = new (std::nothrow) char[20];
        usable += malloc_usable_size(many) >= 40;
        delete one;
        delete[] many;
        delete wide;
        operator delete[](quiet, std::nothrow);
    }
    int thrown = 0;
    for (int i = 0; i < 3; i++) {
        try {
            void* volatile huge = operator new(static_cast<std::size_t>(1) << 60);
            operator delete(huge);
        } catch (const std::bad_alloc&) {
            thrown++;
        }
    }
    std::free(nullptr);
    std::free(std::malloc(0));
    void* volatile none = std::malloc(static_cast<std::size_t>(1) << 60);
    void* kept = std::malloc(10);
    std::strcpy(static_cast<char*>(kept), "kept");
    void* volatile not_grown = std::realloc(kept, static_cast<std::size_t>(1) << 60);
    std::printf("usable %lu thrown %d none %d kept %s\n", usable, thrown, none == nullptr,
                not_grown ? "moved" : static_cast<char*>(kept));
    std::free(kept);

    void* passed = std::malloc(5);
    for (int i = 0; i < 50; i++) {
        pthread_t id;
        pthread_create(&id, nullptr, thread, passed);
        pthread_join(id, &passed);
    }
    std::free(passed);

    signal(SIGUSR1, handler);
    for (int i = 0; i < 20; i++) raise(SIGUSR1);
    std::printf("handled %d\n", static_cast<int>(handled));

    void* inherited = std::malloc(1000);
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        std::free(inherited);
        for (int i = 0; i < count; i++) std::free(std::malloc(24));
        std::printf("child done\n");
        std::fflush(stdout);
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    std::free(inherited);
    std::printf("%s, exit %d\n", before_main.block, WEXITSTATUS(status));
    return 0;
}
