#include "map_variant.hpp"
#include "varve/containers/btree_map.hpp"

namespace bench {

namespace {
template <class Placement>
std::unique_ptr<variant> tree(const budgets& sizes) {
    // Two to three children a node, as in the study.
    using map = varve::btree_map<key_type, mapped_type, 3, std::less<key_type>, allocator, Placement>;
    return std::make_unique<map_variant<map>>(sizes);
}
}  // namespace

std::unique_ptr<variant> make_tree(std::string_view placement, const budgets& sizes) {
    namespace policy = varve::placement;
    if (placement == "hint") {
        return tree<policy::hint>(sizes);
    }
    if (placement == "local") {
        return tree<policy::local>(sizes);
    }
    if (placement == "local+dfs") {
        return tree<policy::local_dfs>(sizes);
    }
    if (placement == "dfs") {
        return tree<policy::dfs>(sizes);
    }
    if (placement == "local+veb") {
        return tree<policy::local_veb>(sizes);
    }
    if (placement == "veb") {
        return tree<policy::veb>(sizes);
    }
    if (placement == "auto") {
        return tree<policy::automatic>(sizes);
    }
    return nullptr;
}

}  // namespace bench
