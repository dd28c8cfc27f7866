#include "model_test.hpp"
#include "varve/space/simulated_space.hpp"

namespace varve_test {
namespace {
namespace policy = varve::placement;
using lists = testing::Types<list<policy::hint>, list<policy::local>, list<policy::local_page, std::string>,
                             list<policy::page, int, varve::simulated_space>, list<policy::automatic>>;
INSTANTIATE_TYPED_TEST_SUITE_P(List, MapModel, lists);
}  // namespace
}  // namespace varve_test
