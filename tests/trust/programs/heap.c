/* Has objects on its heap, made by two threads, for as many milliseconds as it is given. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 5 << 20, OF_THREAD = 3 << 20 };

/* So that the compiler leaves it alone. */
static char *volatile block;

static void *work(void *milliseconds)
{
	char *own = malloc(OF_THREAD);

	memset(own, 1, OF_THREAD);
	usleep(*(int *)milliseconds * 1000);
	return own;
}

int main(int count, char **arguments)
{
	int milliseconds = count > 1 ? atoi(arguments[1]) : 100;
	pthread_t thread;

	block = malloc(BLOCK);
	memset(block, 1, BLOCK);
	/* By now everybody knows what this is. */
	usleep(300000);
	if (pthread_create(&thread, 0, work, &milliseconds))
		return 2;
	pthread_join(thread, 0);
	return block[BLOCK / 2] != 1;
}
