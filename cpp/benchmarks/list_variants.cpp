#include "map_variant.hpp"
#include "varve/containers/skip_list_map.hpp"

namespace bench {

namespace {
template <class Placement>
std::unique_ptr<variant> list(const budgets& sizes) {
    using map = varve::skip_list_map<key_type, mapped_type, std::less<key_type>, allocator, Placement>;
    return std::make_unique<map_variant<map>>(sizes);
}
}  // namespace

std::unique_ptr<variant> make_list(std::string_view placement, const budgets& sizes) {
    namespace policy = varve::placement;
    if (placement == "hint") {
        return list<policy::hint>(sizes);
    }
    if (placement == "local") {
        return list<policy::local>(sizes);
    }
    if (placement == "local+page") {
        return list<policy::local_page>(sizes);
    }
    if (placement == "page") {
        return list<policy::page>(sizes);
    }
    if (placement == "auto") {
        return list<policy::automatic>(sizes);
    }
    return nullptr;
}

}  // namespace bench
