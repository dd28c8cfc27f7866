// What can go wrong, as types.
#pragma once

#include <new>
#include <system_error>

namespace varve {

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
