/* Graphs for the programs in this folder: made at random, the same for the same seed, in compressed sparse rows.
 *
 * `kron` is the Kronecker (R-MAT) graph of Graph500: few vertices with very many edges. `urand` has edges between any two vertices
 * alike. Both have 2^scale vertices and `degree` undirected edges for each, doubled so that each end knows the other. */
#ifndef GRAPH_H
#define GRAPH_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef uint32_t vertex;

struct graph {
	int64_t vertices;
	int64_t edges;    /* directed: twice the undirected ones */
	int64_t *offsets; /* where the neighbours of each vertex begin */
	vertex *neighbours;
};

static inline uint64_t mixed(uint64_t x)
{
	/* SplitMix64 (Steele, Lea, Flood 2014): a number for each index, whichever thread asks. */
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

static inline void *must(void *memory)
{
	if (memory == NULL) {
		fprintf(stderr, "out of memory\n");
		exit(1);
	}
	return memory;
}

/* The two ends of the i-th edge. */
static inline void ends_of(int is_kron, int scale, uint64_t seed, int64_t i, vertex *from, vertex *to)
{
	uint64_t mask = (1u << scale) - 1;
	uint64_t dice = mixed(seed + (uint64_t)i);
	if (!is_kron) {
		*from = dice & mask;
		*to = (dice >> 32) & mask;
		return;
	}
	uint64_t a = 0, b = 0;
	for (int bit = 0; bit < scale; bit++) {
		dice = mixed(dice);
		/* Graph500's chances of the four quarters: 57, 19, 19, 5 of 100. */
		unsigned chance = dice % 100;
		unsigned low = chance >= 76, right = (chance >= 57 && chance < 76) || chance >= 95;
		a = a << 1 | low;
		b = b << 1 | right;
	}
	/* So that vertices with many edges do not all stand first: times an odd number, modulo a power of two, is a permutation. */
	*from = (a * 0x9e3779b1u) & mask;
	*to = (b * 0x9e3779b1u) & mask;
}

static struct graph make_graph(int is_kron, int scale, int degree, uint64_t seed)
{
	struct graph g = {.vertices = (int64_t)1 << scale};
	int64_t undirected = g.vertices * degree;
	g.edges = 2 * undirected;
	g.offsets = must(calloc(g.vertices + 1, sizeof *g.offsets));
	g.neighbours = must(malloc(g.edges * sizeof *g.neighbours));
#pragma omp parallel for
	for (int64_t i = 0; i < undirected; i++) {
		vertex a, b;
		ends_of(is_kron, scale, seed, i, &a, &b);
		__atomic_fetch_add(&g.offsets[a + 1], 1, __ATOMIC_RELAXED);
		__atomic_fetch_add(&g.offsets[b + 1], 1, __ATOMIC_RELAXED);
	}
	for (int64_t v = 0; v < g.vertices; v++)
		g.offsets[v + 1] += g.offsets[v];
	int64_t *next = must(malloc(g.vertices * sizeof *next));
	memcpy(next, g.offsets, g.vertices * sizeof *next);
	/* In one thread, so that neighbours stand in the same order in each run. */
	for (int64_t i = 0; i < undirected; i++) {
		vertex a, b;
		ends_of(is_kron, scale, seed, i, &a, &b);
		g.neighbours[next[a]++] = b;
		g.neighbours[next[b]++] = a;
	}
	free(next);
	return g;
}

/* A vertex with neighbours, another one for each number. */
static inline vertex source_of(const struct graph *g, int number)
{
	uint64_t at = mixed(number + 1) % g->vertices;
	while (g->offsets[at] == g->offsets[at + 1])
		at = (at + 1) % g->vertices;
	return at;
}

static inline double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

struct options {
	int is_kron, scale, degree, rounds;
};

/* PROGRAM kron|urand [SCALE [DEGREE [ROUNDS]]] */
static inline struct options options_of(int argc, char **argv)
{
	struct options o = {.scale = 16, .degree = 16, .rounds = 4};
	if (argc < 2 || (strcmp(argv[1], "kron") != 0 && strcmp(argv[1], "urand") != 0)) {
		fprintf(stderr, "usage: %s kron|urand [SCALE [DEGREE [ROUNDS]]]\n", argv[0]);
		exit(2);
	}
	o.is_kron = strcmp(argv[1], "kron") == 0;
	if (argc > 2)
		o.scale = atoi(argv[2]);
	if (argc > 3)
		o.degree = atoi(argv[3]);
	if (argc > 4)
		o.rounds = atoi(argv[4]);
	if (o.scale < 2 || o.scale > 31 || o.degree < 1 || o.degree > 1024 || o.rounds < 1) {
		fprintf(stderr, "%s: SCALE is 2 to 31, DEGREE 1 to 1024, ROUNDS 1 or more\n", argv[0]);
		exit(2);
	}
	return o;
}

#endif
