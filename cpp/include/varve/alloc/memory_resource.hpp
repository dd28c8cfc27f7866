// Every part as a std::pmr::memory_resource.
#pragma once

// libc++ has it from version 16 on; before, there is no part_resource.
#if __has_include(<memory_resource>)
#define VARVE_HAS_MEMORY_RESOURCE 1

#include <memory_resource>

#include "varve/alloc/collective_allocator.hpp"
#include "varve/core/errors.hpp"

namespace varve {

/// A polymorphic resource over a sub-allocator. Resources of one heap are equal.
template <swap_space Space = plain_space>
class part_resource final : public std::pmr::memory_resource {
public:
    explicit part_resource(const sub_allocator<std::byte, Space>& part) : part_(part) {}

private:
    static constexpr std::size_t step = 16;
    template <std::size_t A>
    struct alignas(A) aligned_chunk {
        std::byte bytes[A];
    };

    /// Calls `act` with the identity of a type of the alignment asked for, a power of two up to a page.
    template <class Act>
    static auto with_alignment(std::size_t alignment, Act act) {
        switch (alignment) {
            case 32:
                return act(std::type_identity<aligned_chunk<32>>{});
            case 64:
                return act(std::type_identity<aligned_chunk<64>>{});
            case 128:
                return act(std::type_identity<aligned_chunk<128>>{});
            case 256:
                return act(std::type_identity<aligned_chunk<256>>{});
            case 512:
                return act(std::type_identity<aligned_chunk<512>>{});
            case 1024:
                return act(std::type_identity<aligned_chunk<1024>>{});
            case 2048:
                return act(std::type_identity<aligned_chunk<2048>>{});
            case 4096:
                return act(std::type_identity<aligned_chunk<4096>>{});
            default:
                if (alignment > 4096) {
                    detail::raise(out_of_room());
                }
                return act(std::type_identity<aligned_chunk<step>>{});
        }
    }

    void* do_allocate(std::size_t size, std::size_t alignment) override {
        return with_alignment(alignment, [&]<class C>(std::type_identity<C>) -> void* {
            return std::to_address(
                sub_allocator<C, Space>(part_).allocate(bits::pieces(size == 0 ? 1 : size, sizeof(C))));
        });
    }
    void do_deallocate(void* p, std::size_t size, std::size_t alignment) override {
        with_alignment(alignment, [&]<class C>(std::type_identity<C>) {
            using pointer = typename sub_allocator<C, Space>::pointer;
            sub_allocator<C, Space>(part_).deallocate(static_cast<pointer>(static_cast<C*>(p)),
                                                      bits::pieces(size == 0 ? 1 : size, sizeof(C)));
        });
    }
    [[nodiscard]] bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
        const auto* same = dynamic_cast<const part_resource*>(&other);
        return same != nullptr && same->part_ == part_;
    }

    sub_allocator<std::byte, Space> part_;
};

}  // namespace varve

#endif
