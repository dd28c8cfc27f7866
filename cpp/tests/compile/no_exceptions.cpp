// The containers and allocators in a program without exceptions. Its failures end it, as those of the library do.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "varve/varve.hpp"

#if defined(__cpp_exceptions)
#error "this must be compiled with -fno-exceptions"
#endif

namespace {

void expect(bool true_enough, const char* what) {
    if (!true_enough) {
        std::fprintf(stderr, "not so: %s\n", what);
        std::_Exit(1);
    }
}

template <class Map>
void use(Map m) {
    for (int i = 0; i < 2000; ++i) {
        m.try_emplace(i * 7 % 2000, std::to_string(i));
    }
    m.reblock();
    for (int i = 0; i < 2000; i += 2) {
        m.erase(i);
    }
    auto handle = m.extract(1);
    handle.key() = 0;
    m.insert(std::move(handle));
    Map copy(m);
    expect(copy == m && copy.size() == 1000, "a copy is equal");
    expect(copy.at(0) == copy.begin()->second, "the element is there");
}

}  // namespace

int main(int count, char**) {
    using element = std::pair<const int, std::string>;
    using memory = varve::collective_allocator<element>;
    const memory a({varve::byte_count{20 << 10}, varve::byte_count{64 << 20}});
    use(varve::btree_map<int, std::string, 4, std::less<int>, memory, varve::placement::local_dfs>(a));
    use(varve::skip_list_map<int, std::string, std::less<int>, memory, varve::placement::local_page>(a));
    use(varve::btree_map<int, std::string>());
    varve::skip_list_multiset<int> s{1, 2, 2};
    expect(s.count(2) == 2, "both are there");
    expect(a.sub(varve::swappable_plain).try_allocate(std::size_t{1} << 30) == nullptr, "null where there is no room");
    if (count > 1) {
        std::signal(SIGABRT, [](int) { std::_Exit(2); });
        (void)varve::btree_map<int, int>().at(count);  // ends the program
    }
    return 0;
}
