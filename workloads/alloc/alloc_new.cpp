// Allocates and frees blocks by each kind of operator new: alloc_new ROUNDS. Each function allocates ROUNDS times 1,000 blocks of 300 bytes.
#include <cstdlib>
#include <new>

namespace {

constexpr int count = 1000;
constexpr std::size_t bytes = 300;

} // namespace

extern "C" {

__attribute__((noinline)) void by_new() {
    for (int i = 0; i < count; i++) operator delete(operator new(bytes));
}

__attribute__((noinline)) void by_new_array() {
    for (int i = 0; i < count; i++) operator delete[](operator new[](bytes));
}

__attribute__((noinline)) void by_aligned_new() {
    constexpr std::align_val_t line{64};
    for (int i = 0; i < count; i++) operator delete(operator new(bytes, line), line);
}

__attribute__((noinline)) void by_new_that_does_not_throw() {
    for (int i = 0; i < count; i++) operator delete(operator new(bytes, std::nothrow), std::nothrow);
}

__attribute__((noinline)) void by_malloc() {
    for (int i = 0; i < count; i++) std::free(std::malloc(bytes));
}
}

int main(int argc, char** argv) {
    const int rounds = argc > 1 ? std::atoi(argv[1]) : 1;
    for (int i = 0; i < rounds; i++) {
        by_new();
        by_new_array();
        by_aligned_new();
        by_new_that_does_not_throw();
        by_malloc();
    }
}
