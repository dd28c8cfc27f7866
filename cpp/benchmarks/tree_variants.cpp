#include "map_variant.hpp"
#include "varve/containers/btree_map.hpp"

namespace bench {

namespace {
template <class Placement>
struct tree_of {
    // Two to three children a node, as in the study.
    template <class A>
    using map = varve::btree_map<key_type, mapped_type, 3, std::less<key_type>, A, Placement>;
};

template <class Placement, pager_kind Kind>
std::unique_ptr<variant> tree(const budgets& sizes) {
    return std::make_unique<map_variant<tree_of<Placement>::template map, Kind>>(sizes);
}
}  // namespace

template <pager_kind Kind>
std::unique_ptr<variant> make_tree(std::string_view placement, const budgets& sizes) {
    namespace policy = varve::placement;
    if (placement == "hint") {
        return tree<policy::hint, Kind>(sizes);
    }
    if (placement == "local") {
        return tree<policy::local, Kind>(sizes);
    }
    if (placement == "local+dfs") {
        return tree<policy::local_dfs, Kind>(sizes);
    }
    if (placement == "dfs") {
        return tree<policy::dfs, Kind>(sizes);
    }
    if (placement == "local+veb") {
        return tree<policy::local_veb, Kind>(sizes);
    }
    if (placement == "veb") {
        return tree<policy::veb, Kind>(sizes);
    }
    if (placement == "auto") {
        return tree<policy::automatic, Kind>(sizes);
    }
    return nullptr;
}

template std::unique_ptr<variant> make_tree<pager_kind::simulated>(std::string_view, const budgets&);
template std::unique_ptr<variant> make_tree<pager_kind::real>(std::string_view, const budgets&);

}  // namespace bench
