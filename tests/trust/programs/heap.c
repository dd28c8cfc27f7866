/* Has objects on its heap, made by two threads, for as many milliseconds as it is given, or until there is a file with the name that it is given. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 5 << 20, OF_THREAD = 3 << 20 };

/* So that the compiler leaves it alone. */
static char *volatile block;

static void *work(void *until)
{
	char *own = malloc(OF_THREAD), *rest;
	long milliseconds = strtol(until, &rest, 10);

	memset(own, 1, OF_THREAD);
	if (*rest)
		while (access(until, F_OK))
			usleep(10000);
	else
		usleep(milliseconds * 1000);
	return own;
}

int main(int count, char **arguments)
{
	pthread_t thread;

	block = malloc(BLOCK);
	memset(block, 1, BLOCK);
	/* By now everybody knows what this is. */
	usleep(300000);
	if (pthread_create(&thread, 0, work, count > 1 ? arguments[1] : "100"))
		return 2;
	pthread_join(thread, 0);
	return block[BLOCK / 2] != 1;
}
