#include "model_test.hpp"

namespace varve_test {
namespace {
namespace policy = varve::placement;
using large_trees = testing::Types<tree<3, policy::dfs, std::string>, tree<5, policy::veb>, tree<16, policy::local_veb>,
                                   tree<64, policy::local_dfs, std::string>, tree<1024, policy::automatic>>;
INSTANTIATE_TYPED_TEST_SUITE_P(LargeTree, MapModel, large_trees);
}  // namespace
}  // namespace varve_test
