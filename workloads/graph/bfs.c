/* Breadth-first search: how many steps each vertex is from a source. Each round has another source. */
#include "graph.h"

int main(int argc, char **argv)
{
	struct options o = options_of(argc, argv);
	struct graph g = make_graph(o.is_kron, o.scale, o.degree, 1);
	int32_t *depth = must(malloc(g.vertices * sizeof *depth));
	vertex *frontier = must(malloc(g.vertices * sizeof *frontier));
	vertex *next = must(malloc(g.vertices * sizeof *next));
	double began = seconds();
	int64_t reached = 0, steps = 0;
	for (int round = 0; round < o.rounds; round++) {
		memset(depth, 0xff, g.vertices * sizeof *depth);
		vertex source = source_of(&g, round);
		depth[source] = 0;
		frontier[0] = source;
		int64_t count = 1;
		for (int32_t level = 1; count > 0; level++) {
			int64_t found = 0;
#pragma omp parallel for schedule(dynamic, 64)
			for (int64_t i = 0; i < count; i++) {
				vertex v = frontier[i];
				for (int64_t e = g.offsets[v]; e < g.offsets[v + 1]; e++) {
					vertex to = g.neighbours[e];
					int32_t unknown = -1;
					if (__atomic_load_n(&depth[to], __ATOMIC_RELAXED) == -1 &&
					    __atomic_compare_exchange_n(&depth[to], &unknown, level, 0, __ATOMIC_RELAXED,
									__ATOMIC_RELAXED))
						next[__atomic_fetch_add(&found, 1, __ATOMIC_RELAXED)] = to;
				}
			}
			vertex *other = frontier;
			frontier = next;
			next = other;
			count = found;
		}
		for (int64_t v = 0; v < g.vertices; v++) {
			reached += depth[v] >= 0;
			steps += depth[v] > 0 ? depth[v] : 0;
		}
	}
	fprintf(stderr, "%.3f s\n", seconds() - began);
	printf("reached %ld, steps %ld\n", (long)reached, (long)steps);
	return 0;
}
