/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What compilers make of ordinary work: lists, trees, hashes, matrices, strings, sorting, floating point, switches, recursion. Together
 * with the C library's own start it is some ten thousand instructions. It writes nothing.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct node {
	struct node *left, *right;
	uint32_t key;
	uint16_t small;
	int8_t sign;
};

static uint64_t state = 88172645463325252ull;
static double matrix[12][12], product[12][12];
static uint32_t table[256];
static char text[600], copy[600];

static uint64_t next(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

__attribute__((noinline)) static struct node *insert(struct node *tree, uint32_t key)
{
	if (!tree) {
		struct node *made = calloc(1, sizeof(*made));
		if (!made)
			abort();
		made->key = key;
		made->sign = (int8_t)key;
		return made;
	}
	if (key < tree->key)
		tree->left = insert(tree->left, key);
	else
		tree->right = insert(tree->right, key);
	tree->small += (uint16_t)tree->sign;
	return tree;
}

__attribute__((noinline)) static int64_t sum(const struct node *tree)
{
	return tree ? sum(tree->left) + sum(tree->right) + tree->key * tree->sign : 0;
}

static int compare(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return (x > y) - (x < y);
}

__attribute__((noinline)) static unsigned machine(const char *program)
{
	unsigned stack[16] = {0}, top = 0;
	for (; *program; program++) {
		switch (*program) {
		case '+': if (top > 1) { stack[top - 2] += stack[top - 1]; top--; } break;
		case '*': if (top > 1) { stack[top - 2] *= stack[top - 1]; top--; } break;
		case '-': if (top > 1) { stack[top - 2] -= stack[top - 1]; top--; } break;
		case 'd': if (top && top < 16) { stack[top] = stack[top - 1]; top++; } break;
		case 'x': if (top > 1) { unsigned t = stack[top - 1]; stack[top - 1] = stack[top - 2]; stack[top - 2] = t; } break;
		case '%': if (top > 1 && stack[top - 1]) { stack[top - 2] %= stack[top - 1]; top--; } break;
		default: if (top < 16) stack[top++] = (unsigned)(*program - '0'); break;
		}
	}
	return stack[0];
}

int main(void)
{
	struct node *tree = NULL;
	uint64_t result = 0;

	for (int i = 0; i < 60; i++)
		tree = insert(tree, (uint32_t)next());
	result += (uint64_t)sum(tree);
	for (int i = 0; i < 12; i++)
		for (int j = 0; j < 12; j++)
			matrix[i][j] = (double)(i * j) / 7;
	for (int i = 0; i < 12; i++)
		for (int j = 0; j < 12; j++)
			for (int k = 0; k < 12; k++)
				product[i][j] += matrix[i][k] * matrix[k][j];
	for (int i = 0; i < 300; i++)
		table[next() & 255] += (uint32_t)i;
	qsort(table, 64, sizeof(*table), compare);
	for (unsigned i = 0; i < sizeof(text) - 1; i++)
		text[i] = (char)('a' + next() % 26);
	for (unsigned n = 0; n < 40; n++) {
		memcpy(copy + n, text + 3 * n, n * 13 % 200);
		memmove(copy + n, copy + n / 2, n * 7 % 150);
		memset(copy + 2 * n, (int)n, n * 5 % 130);
		result += strlen(text + n) + (uint64_t)(strchr(text, 'a' + (int)n % 26) - text);
		result += (uint64_t)strcmp(text + n, copy + n);
	}
	result += machine("12+3*45d*-x7%9+d*");
	result += __atomic_fetch_add(&table[3], 5, __ATOMIC_SEQ_CST);
	return (int)(product[5][7] + (double)result) < 0 ? 1 : 0;
}
