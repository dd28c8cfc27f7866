// One mistake each, which the compiler must call by its name: see CMakeLists.txt here.
#include "varve/varve.hpp"

struct mistaken {
    mistaken() = default;
    mistaken(const mistaken&) noexcept(false) {}
    int value = 0;
    friend bool operator<(const mistaken& a, const mistaken& b) { return a.value < b.value; }
};
struct orders_nothing {};

int main() {
#if defined(KEY_MAY_THROW)
    varve::btree_map<mistaken, int> m;
#elif defined(VALUE_MAY_THROW)
    varve::skip_list_multimap<int, mistaken> m;
#elif defined(ELEMENT_OF_SET_MAY_THROW)
    varve::skip_list_set<mistaken> m;
#elif defined(ALLOCATOR_OF_MAP)
    varve::btree_map<short, char, 16, std::less<short>, std::allocator<std::pair<short, char> > > m;
#elif defined(ALLOCATOR_OF_SET)
    varve::btree_multiset<short, 16, std::less<short>, std::allocator<long> > m;
#elif defined(COMPARISON)
    varve::skip_list_map<short, char, orders_nothing> m;
#elif defined(FANOUT)
    varve::btree_set<short, 2> m;
#else
    varve::btree_map<int, int> m;
#endif
    return static_cast<int>(m.size());
}
