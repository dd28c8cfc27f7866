// What can go wrong, as types; and how it is said where the program is compiled without exceptions.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <new>
#include <system_error>
#include <utility>

// With -fno-exceptions nothing is caught, because nothing is thrown: what would be ends the program with its message.
#if defined(__cpp_exceptions)
#define VARVE_TRY try
#define VARVE_CATCH(what) catch (what)
#define VARVE_RETHROW throw
#else
#define VARVE_TRY if constexpr (true)
#define VARVE_CATCH(what) else
#define VARVE_RETHROW static_cast<void>(0)
#endif

namespace varve {

namespace detail {
/// Throws `error`; without exceptions, prints its message and aborts.
template <class Error>
[[noreturn]] void raise(Error error) {
#if defined(__cpp_exceptions)
    throw error;
#else
    std::fprintf(stderr, "%s\n", error.what());
    std::abort();
#endif
}
}  // namespace detail

/// A part has no room: the budget of the local part is spent, a page is full, or the swappable range is used up.
class out_of_room : public std::bad_alloc {
public:
    [[nodiscard]] const char* what() const noexcept override { return "varve: no room in this part of the memory"; }
};

/// The kernel refused an address range or memory for it.
class mapping_error : public std::system_error {
public:
    explicit mapping_error(int code) : std::system_error(code, std::generic_category(), "varve: mmap") {}
};

}  // namespace varve
