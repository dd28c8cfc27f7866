// UMap, the peer, taken from a shared library that the caller built: https://github.com/LLNL/umap
#pragma once

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "varve/pager/kernel.hpp"

// The interface of UMap 2.1 through which a program hands it a store; names and order are its binary interface.
namespace Umap {
class Store {
public:
    virtual ssize_t read_from_store(char* buffer, std::size_t bytes, off_t offset) = 0;
    virtual ssize_t write_to_store(char* buffer, std::size_t bytes, off_t offset) = 0;

protected:
    ~Store() = default;
};
}  // namespace Umap

namespace bench {

class umap_region final : Umap::Store {
public:
    /// Maps `bytes` over a memory store with room for `buffer_pages` pages. One per process: UMap reads its settings
    /// once.
    umap_region(const std::string& library, std::size_t bytes, std::size_t page, std::size_t buffer_pages)
        : bytes_(bytes), content_({bytes}, {std::size_t{2} << 20}) {
        // The same kind of memory as memory_store has.
        content_.prefer_huge_pages();
        std::memset(content_.start(), 7, bytes);
        ::setenv("UMAP_PAGESIZE", std::to_string(page).c_str(), 1);
        ::setenv("UMAP_BUFSIZE", std::to_string(buffer_pages).c_str(), 1);
        void* handle = ::dlopen(library.c_str(), RTLD_NOW);
        if (handle == nullptr) {
            throw std::runtime_error(std::string("cannot load UMap: ") + ::dlerror());
        }
        using map = void* (*)(void*, std::size_t, int, int, int, off_t, Umap::Store*);
        const auto umap_ex = reinterpret_cast<map>(::dlsym(handle, "_ZN4Umap7umap_exEPvmiiilPNS_5StoreE"));
        unmap_ = reinterpret_cast<int (*)(void*, std::size_t)>(::dlsym(handle, "uunmap"));
        if (umap_ex == nullptr || unmap_ == nullptr) {
            throw std::runtime_error("this library is not UMap 2.1");
        }
        base_ = static_cast<std::byte*>(umap_ex(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, -1, 0, this));
        if (base_ == nullptr || base_ == reinterpret_cast<std::byte*>(-1)) {
            throw std::runtime_error("UMap did not map");
        }
    }
    umap_region(const umap_region&) = delete;
    umap_region& operator=(const umap_region&) = delete;
    ~umap_region() { unmap_(base_, bytes_); }

    [[nodiscard]] std::byte* base() const noexcept { return base_; }
    [[nodiscard]] std::uint64_t reads() const noexcept { return reads_.load(); }

    ssize_t read_from_store(char* buffer, std::size_t bytes, off_t offset) override {
        reads_.fetch_add(1, std::memory_order_relaxed);
        std::memcpy(buffer, content_.start() + offset, bytes);
        return static_cast<ssize_t>(bytes);
    }
    ssize_t write_to_store(char* buffer, std::size_t bytes, off_t offset) override {
        std::memcpy(content_.start() + offset, buffer, bytes);
        return static_cast<ssize_t>(bytes);
    }

private:
    std::size_t bytes_;
    varve::pager::kernel::memory content_;
    std::byte* base_ = nullptr;
    int (*unmap_)(void*, std::size_t) = nullptr;
    std::atomic<std::uint64_t> reads_{0};
};

}  // namespace bench
