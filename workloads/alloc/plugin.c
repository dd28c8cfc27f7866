/* A library that comes and goes, and leaves blocks of its own making behind; it allocates as it comes, too. */
#include <stdlib.h>
#include <string.h>

static char *own;

__attribute__((constructor)) static void begin(void)
{
	own = malloc(40);
}

__attribute__((destructor)) static void end(void)
{
	free(own);
}

char *plugin_make(void)
{
	char *block = malloc(100);

	if (block && own)
		memset(block, 1, 100);
	return block;
}
