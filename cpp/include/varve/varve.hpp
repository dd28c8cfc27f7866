// Everything, the pager apart: include varve/pager/*.hpp for that.
#pragma once

#include "varve/alloc/collective_allocator.hpp"
#include "varve/alloc/memory_resource.hpp"
#include "varve/alloc/traits.hpp"
#include "varve/containers/btree_map.hpp"
#include "varve/containers/btree_set.hpp"
#include "varve/containers/skip_list_map.hpp"
#include "varve/containers/skip_list_set.hpp"
#include "varve/space/plain_space.hpp"
#include "varve/space/simulated_space.hpp"
