/*
 * A program that says what it will do by what it is called with, and does it between two lines of its input: a recorder is attached before. It prints
 * nothing that allocates.
 *
 *   counts N        N times each malloc, calloc with realloc, posix_memalign and new[], all freed; 7 new[] that throw
 *   before N        frees N blocks that it had before the first line, and allocates N that it keeps
 *   threads T N     T threads at once, each of which allocates and frees N blocks
 *   fork N          a child allocates and frees N blocks at once, and so does its parent; the child frees one of its parent's
 *   exit N          allocates N blocks and ends at once
 */
#include <cstdlib>
#include <cstring>
#include <new>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static void wait_for_line()
{
	char byte;

	while (read(0, &byte, 1) == 1 && byte != '\n')
		;
}

static void say(const char *text)
{
	if (write(1, text, strlen(text)) < 0)
		_exit(3);
}

static void pairs(long n)
{
	for (long i = 0; i < n; i++) {
		char *p = static_cast<char *>(malloc(100 + i % 32));

		p[0] = 1;
		free(p);
	}
}

static int counts(long n)
{
	int thrown = 0;

	pairs(n);
	for (long i = 0; i < n; i++) {
		void *p = calloc(10, 20);
		void *aligned;

		p = realloc(p, 3000);
		free(p);
		if (posix_memalign(&aligned, 64, 500))
			return 2;
		free(aligned);
		char *array = new char[70 + i % 8];
		array[0] = 1;
		asm volatile("" : : "r"(array) : "memory");
		delete[] array;
	}
	for (int i = 0; i < 7; i++) {
		volatile size_t much = size_t(1) << 60;

		try {
			char *array = new char[much];
			asm volatile("" : : "r"(array) : "memory");
		} catch (const std::bad_alloc &) {
			thrown++;
		}
	}
	return thrown == 7 ? 0 : 1;
}

static long each;

static void *thread(void *)
{
	pairs(each);
	return nullptr;
}

static int threads(int count)
{
	pthread_t all[64];

	for (int i = 0; i < count; i++)
		pthread_create(&all[i], nullptr, thread, nullptr);
	for (int i = 0; i < count; i++)
		pthread_join(all[i], nullptr);
	return 0;
}

static int forks(long n)
{
	void *before = malloc(777);
	pid_t child = fork();
	int status = 0;

	pairs(n);
	if (!child) {
		free(before);
		_exit(0);
	}
	waitpid(child, &status, 0);
	free(before);
	return status;
}

int main(int argc, char **argv)
{
	const char *mode = argc > 2 ? argv[1] : "";
	long n = argc > 2 ? atol(argv[2]) : 0;
	static void *kept[100000];
	int result = 0;

	if (!strcmp(mode, "before"))
		for (long i = 0; i < n; i++)
			kept[i] = malloc(50);
	say("ready\n");
	wait_for_line();
	if (!strcmp(mode, "counts"))
		result = counts(n);
	else if (!strcmp(mode, "before"))
		for (long i = 0; i < n; i++) {
			free(kept[i]);
			kept[i] = malloc(1000);
		}
	else if (!strcmp(mode, "threads") && argc > 3) {
		each = atol(argv[3]);
		result = threads(n);
	} else if (!strcmp(mode, "fork"))
		result = forks(n);
	else if (!strcmp(mode, "exit")) {
		for (long i = 0; i < n; i++)
			kept[i] = malloc(200);
		_exit(5);
	} else
		return 2;
	say("done\n");
	wait_for_line();
	_exit(result);
}
