/*
 * Has objects on its heap, made by two threads, with input as its clock: nothing is read, so that several can wait for the same pipe.
 *
 * Makes one block and says "one"; with a byte of input a second thread makes another, and says "two"; with two bytes it ends.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { BLOCK = 5 << 20, OF_THREAD = 3 << 20 };

/* So that the compiler leaves it alone. */
static char *volatile block;

static void say(const char *word)
{
	if (write(1, word, 4) != 4)
		_exit(3);
}

static void wait_for(int bytes)
{
	int there = 0;

	while (there < bytes) {
		if (ioctl(0, FIONREAD, &there))
			_exit(4);
		usleep(1000);
	}
}

static void *work(void *unused)
{
	char *own = malloc(OF_THREAD);

	(void)unused;
	memset(own, 1, OF_THREAD);
	say("two\n");
	wait_for(2);
	return own;
}

int main(void)
{
	pthread_t thread;

	block = malloc(BLOCK);
	memset(block, 1, BLOCK);
	say("one\n");
	wait_for(1);
	if (pthread_create(&thread, 0, work, 0))
		return 2;
	pthread_join(thread, 0);
	return block[BLOCK / 2] != 1;
}
