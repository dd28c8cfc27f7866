#include "model_test.hpp"
#include "varve/space/simulated_space.hpp"

namespace varve_test {
namespace {
namespace policy = varve::placement;
using small_trees = testing::Types<tree<3, policy::hint>, tree<3, policy::local>, tree<3, policy::local_dfs>,
                                   tree<3, policy::local_veb, int, varve::simulated_space>, tree<4, policy::automatic>>;
INSTANTIATE_TYPED_TEST_SUITE_P(SmallTree, MapModel, small_trees);
}  // namespace
}  // namespace varve_test
