/* Betweenness centrality: on how many shortest paths each vertex lies (Brandes 2001), from one source in each round. */
#include "graph.h"

int main(int argc, char **argv)
{
	struct options o = options_of(argc, argv);
	struct graph g = make_graph(o.is_kron, o.scale, o.degree, 1);
	int32_t *depth = must(malloc(g.vertices * sizeof *depth));
	double *paths = must(malloc(g.vertices * sizeof *paths));
	double *share = must(malloc(g.vertices * sizeof *share));
	double *centrality = must(calloc(g.vertices, sizeof *centrality));
	/* Vertices in the order in which they were reached, and where each level begins. */
	vertex *order = must(malloc(g.vertices * sizeof *order));
	int64_t *levels = must(malloc((g.vertices + 2) * sizeof *levels));
	double began = seconds();
	for (int round = 0; round < o.rounds; round++) {
		memset(depth, 0xff, g.vertices * sizeof *depth);
		memset(paths, 0, g.vertices * sizeof *paths);
		memset(share, 0, g.vertices * sizeof *share);
		vertex source = source_of(&g, round);
		depth[source] = 0;
		paths[source] = 1;
		order[0] = source;
		levels[0] = 0;
		levels[1] = 1;
		int32_t level = 0;
		while (levels[level] < levels[level + 1]) {
			int64_t found = levels[level + 1];
#pragma omp parallel for schedule(dynamic, 64)
			for (int64_t i = levels[level]; i < levels[level + 1]; i++) {
				vertex v = order[i];
				for (int64_t e = g.offsets[v]; e < g.offsets[v + 1]; e++) {
					vertex to = g.neighbours[e];
					int32_t unknown = -1;
					if (__atomic_load_n(&depth[to], __ATOMIC_RELAXED) == -1 &&
					    __atomic_compare_exchange_n(&depth[to], &unknown, level + 1, 0,
									__ATOMIC_RELAXED, __ATOMIC_RELAXED))
						order[__atomic_fetch_add(&found, 1, __ATOMIC_RELAXED)] = to;
				}
			}
			level++;
			levels[level + 1] = found;
			/* Each vertex asks those before it, so that nobody adds to another's sum. */
#pragma omp parallel for schedule(dynamic, 64)
			for (int64_t i = levels[level]; i < found; i++) {
				vertex v = order[i];
				for (int64_t e = g.offsets[v]; e < g.offsets[v + 1]; e++)
					if (depth[g.neighbours[e]] == level - 1)
						paths[v] += paths[g.neighbours[e]];
			}
		}
		for (int32_t back = level - 1; back >= 0; back--) {
#pragma omp parallel for schedule(dynamic, 64)
			for (int64_t i = levels[back]; i < levels[back + 1]; i++) {
				vertex v = order[i];
				for (int64_t e = g.offsets[v]; e < g.offsets[v + 1]; e++) {
					vertex to = g.neighbours[e];
					if (depth[to] == back + 1)
						share[v] += paths[v] / paths[to] * (1 + share[to]);
				}
				if (v != source)
					centrality[v] += share[v];
			}
		}
	}
	fprintf(stderr, "%.3f s\n", seconds() - began);
	double sum = 0;
	for (int64_t v = 0; v < g.vertices; v++)
		sum += centrality[v];
	printf("centrality %.0f\n", sum);
	return 0;
}
