/* Connected components: labels go down along edges until nothing changes (Shiloach and Vishkin 1982). */
#include "graph.h"

int main(int argc, char **argv)
{
	struct options o = options_of(argc, argv);
	struct graph g = make_graph(o.is_kron, o.scale, o.degree, 1);
	vertex *label = must(malloc(g.vertices * sizeof *label));
	double began = seconds();
	int64_t components = 0;
	for (int round = 0; round < o.rounds; round++) {
		for (int64_t v = 0; v < g.vertices; v++)
			label[v] = v;
		int changed = 1;
		while (changed) {
			changed = 0;
#pragma omp parallel for schedule(dynamic, 1024) reduction(| : changed)
			for (int64_t v = 0; v < g.vertices; v++) {
				vertex least = __atomic_load_n(&label[v], __ATOMIC_RELAXED);
				vertex before = least;
				for (int64_t e = g.offsets[v]; e < g.offsets[v + 1]; e++) {
					vertex of = __atomic_load_n(&label[g.neighbours[e]], __ATOMIC_RELAXED);
					if (of < least)
						least = of;
				}
				/* No label is larger than its vertex, so this ends. */
				while (__atomic_load_n(&label[least], __ATOMIC_RELAXED) < least)
					least = __atomic_load_n(&label[least], __ATOMIC_RELAXED);
				if (least < before) {
					__atomic_store_n(&label[v], least, __ATOMIC_RELAXED);
					changed = 1;
				}
			}
		}
		components = 0;
		for (int64_t v = 0; v < g.vertices; v++)
			components += label[v] == v;
	}
	fprintf(stderr, "%.3f s\n", seconds() - began);
	printf("components %ld\n", (long)components);
	return 0;
}
