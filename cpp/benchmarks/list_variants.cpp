#include "map_variant.hpp"
#include "varve/containers/skip_list_map.hpp"

namespace bench {

namespace {
template <class Placement>
struct list_of {
    template <class A>
    using map = varve::skip_list_map<key_type, mapped_type, std::less<key_type>, A, Placement>;
};

template <class Placement, pager_kind Kind>
std::unique_ptr<variant> list(const budgets& sizes) {
    return std::make_unique<map_variant<list_of<Placement>::template map, Kind>>(sizes);
}
}  // namespace

template <pager_kind Kind>
std::unique_ptr<variant> make_list(std::string_view placement, const budgets& sizes) {
    namespace policy = varve::placement;
    if (placement == "hint") {
        return list<policy::hint, Kind>(sizes);
    }
    if (placement == "local") {
        return list<policy::local, Kind>(sizes);
    }
    if (placement == "local+page") {
        return list<policy::local_page, Kind>(sizes);
    }
    if (placement == "page") {
        return list<policy::page, Kind>(sizes);
    }
    if (placement == "auto") {
        return list<policy::automatic, Kind>(sizes);
    }
    return nullptr;
}

template std::unique_ptr<variant> make_list<pager_kind::simulated>(std::string_view, const budgets&);
template std::unique_ptr<variant> make_list<pager_kind::real>(std::string_view, const budgets&);

}  // namespace bench
