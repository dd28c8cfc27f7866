// A file belongs to one store, and is what it was when it was attached.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <fstream>
#include <random>
#include <thread>

#include "support.hpp"
#include "varve/pager/stores/file.hpp"
#include "varve/pager/stores/snapshot.hpp"

namespace {

using namespace varve;
using pager::opening;
using test::word;

constexpr std::size_t page = 4096;
constexpr std::size_t pages = 100;
constexpr byte_count capacity{pages * page};

pager::any_store make(const std::string& kind, const std::filesystem::path& path,
                      opening how = opening::attach_or_create) {
    if (kind == "snapshot") {
        return pager::any_store(pager::snapshot_store(path, capacity, {page}, how));
    }
#ifdef VARVE_PAGER_HAS_URING
    if (kind == "uring") {
        return pager::any_store(pager::uring_store(path, capacity, how));
    }
#endif
    return pager::any_store(pager::file_store(path, capacity, how));
}
pager::paged_space space_on(pager::any_store store) {
    pager::options o;
    o.local = {16 * page};
    return {capacity, std::move(store), o};
}

class owner : public testing::TestWithParam<const char*> {
protected:
    const test::temporary_folder folder;
    const std::filesystem::path path = folder.file("pages");

    void expect_refused() {
        try {
            (void)make(GetParam(), path);
            ADD_FAILURE() << "two stores have one file";
        } catch (const std::system_error& error) {
            EXPECT_EQ(error.code().value(), EBUSY);
            EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos) << error.what();
        }
    }
};

TEST_P(owner, is_one_at_a_time) {
    {
        pager::paged_space space = space_on(make(GetParam(), path));
        for (std::size_t p = 0; p < pages; ++p) {
            word(space, p) = p + 1;
        }
        expect_refused();
        std::filesystem::create_symlink(path, folder.file("link"));
        EXPECT_THROW((void)make(GetParam(), folder.file("link")), std::system_error);
        // Another process, with a descriptor of its own.
        ::fflush(nullptr);
        const pid_t child = ::fork();
        if (child == 0) {
            try {
                (void)make(GetParam(), path);
                ::_exit(1);
            } catch (const std::system_error& error) {
                ::_exit(error.code().value() == EBUSY ? 0 : 2);
            }
        }
        int status = 0;
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        space.snapshot();
    }
    pager::paged_space space = space_on(make(GetParam(), path));
    for (std::size_t p = 0; p < pages; ++p) {
        ASSERT_EQ(word(space, p), p + 1);
    }
}

/// The lock belongs to the open file, which a forked child shares: it is free when both have let go.
TEST_P(owner, stays_while_a_forked_child_lives) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    pid_t child = -1;
    {
        const pager::any_store store = make(GetParam(), path);
        ::fflush(nullptr);
        child = ::fork();
        if (child == 0) {
            ::close(ends[1]);
            char nothing = 0;
            (void)!::read(ends[0], &nothing, 1);
            ::_exit(0);
        }
        ::close(ends[0]);
        expect_refused();
    }
    expect_refused();
    ::close(ends[1]);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    EXPECT_NO_THROW((void)make(GetParam(), path));
}

TEST_P(owner, of_a_file_that_was_replaced_is_told_when_it_saves) {
    pager::paged_space space = space_on(make(GetParam(), path));
    word(space, 3) = 1;
    space.snapshot();
    std::ofstream(folder.file("other")) << "something else";
    std::filesystem::rename(folder.file("other"), path);
    word(space, 3) = 2;
    EXPECT_THROW(space.snapshot(), std::system_error);
    EXPECT_THROW(space.flush(), std::system_error);
    EXPECT_EQ(word(space, 3), 2u);
}

TEST_P(owner, of_a_file_that_was_cut_off_and_lengthened_never_reads_zeros) {
    test::fault_catcher::install();
    pager::paged_space space = space_on(make(GetParam(), path));
    for (std::size_t p = 0; p < pages; ++p) {
        word(space, p) = p + 1;
    }
    space.snapshot();
    space.page_out();
    const auto before = std::filesystem::file_size(path);
    std::filesystem::resize_file(path, before / 2);
    EXPECT_THROW(space.flush(), std::system_error);
    std::filesystem::resize_file(path, before);
    std::size_t failed = 0;
    for (std::size_t p = 0; p < pages; ++p) {
        std::uint64_t value = 0;
        if (test::fault_catcher::run([&] { value = *static_cast<volatile std::uint64_t*>(&word(space, p)); }) != 0) {
            ++failed;
        } else {
            ASSERT_EQ(value, p + 1);
        }
    }
    EXPECT_GE(failed, pages / 3);
    EXPECT_LT(failed, pages);
}

TEST_P(owner, never_reads_what_others_wrote_over_pages_that_it_has_seen) {
    test::fault_catcher::install();
    {
        pager::paged_space space = space_on(make(GetParam(), path));
        word(space, 0) = word(space, 1) = 5;
        space.snapshot();
    }
    pager::paged_space space = space_on(make(GetParam(), path));
    EXPECT_EQ(word(space, 0) + word(space, 1), 10u);
    space.page_out();
    {
        std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
        file << std::string(std::filesystem::file_size(path), '\0');
    }
    for (std::size_t p = 0; p < 2; ++p) {
        EXPECT_EQ(test::fault_catcher::run([&] { (void)*static_cast<volatile std::uint64_t*>(&word(space, p)); }),
                  SIGBUS);
    }
}

TEST_P(owner, who_wants_to_attach_gets_no_new_file) {
    EXPECT_THROW((void)make(GetParam(), path, opening::attach), std::system_error);
    EXPECT_FALSE(std::filesystem::exists(path));
    std::ofstream(path, std::ios::binary).flush();
    EXPECT_THROW((void)make(GetParam(), path, opening::attach), std::system_error);
    (void)make(GetParam(), path);
    EXPECT_NO_THROW((void)make(GetParam(), path, opening::attach));
}

TEST_P(owner, is_told_of_a_file_that_was_cut_off_between) {
    {
        pager::paged_space space = space_on(make(GetParam(), path));
        for (std::size_t p = 0; p < pages; ++p) {
            word(space, p) = p + 1;
        }
        space.snapshot();
    }
    std::filesystem::resize_file(path, std::filesystem::file_size(path) - page);
    try {
        (void)make(GetParam(), path);
        ADD_FAILURE() << "attached";
    } catch (const std::runtime_error& error) {
        EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos) << error.what();
    }
}

std::vector<const char*> kinds() {
    std::vector<const char*> list{"file", "snapshot"};
#ifdef VARVE_PAGER_HAS_URING
    list.push_back("uring");
#endif
    return list;
}
INSTANTIATE_TEST_SUITE_P(stores, owner, testing::ValuesIn(kinds()),
                         [](const auto& parameter) { return std::string(parameter.param); });

TEST(snapshot_pages, that_were_damaged_between_fail) {
    test::fault_catcher::install();
    const test::temporary_folder folder;
    const std::filesystem::path path = folder.file("pages");
    {
        pager::paged_space space = space_on(make("snapshot", path));
        for (std::size_t p = 0; p < pages; ++p) {
            word(space, p) = p + 1;
        }
        space.snapshot();
    }
    {
        // A page of zeros in place of one that was not.
        std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(-static_cast<std::streamoff>(page), std::ios::end);
        file << std::string(page, '\0');
    }
    pager::paged_space space = space_on(make("snapshot", path));
    std::size_t failed = 0;
    for (std::size_t p = 0; p < pages; ++p) {
        std::uint64_t value = 0;
        if (test::fault_catcher::run([&] { value = *static_cast<volatile std::uint64_t*>(&word(space, p)); }) != 0) {
            ++failed;
        } else {
            EXPECT_EQ(value, p + 1);
        }
    }
    EXPECT_EQ(failed, 1u);
}

/// Pinned pages are not held during a snapshot: what it keeps of them must still be a page that can be read.
TEST(snapshot_pages, that_were_pinned_and_changing_are_found) {
    const test::temporary_folder folder;
    pager::paged_space space = space_on(make("snapshot", folder.file("pages")));
    const pager::pinned pin(space, space.base(), byte_count{page});
    std::atomic<bool> stop{false};
    std::thread changing([&] {
        for (std::uint64_t n = 0; !stop; ++n) {
            std::atomic_ref(word(space, 0, n % 512)).store(n, std::memory_order_relaxed);
        }
    });
    std::vector<std::byte> found(page);
    int unreadable = 0;
    for (int i = 0; i < 50; ++i) {
        space.snapshot();
        std::filesystem::copy_file(folder.file("pages"), folder.file("copy"),
                                   std::filesystem::copy_options::overwrite_existing);
        pager::any_store copy = make("snapshot", folder.file("copy"));
        unreadable += !copy.read(pager::store_offset{0}, found).complete(page);
    }
    stop = true;
    changing.join();
    EXPECT_EQ(unreadable, 0);
}

}  // namespace
