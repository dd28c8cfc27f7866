/* Memory that a plan places: `kept` is written once and then left alone, `used` is gone over again and again, so that under a limit any
 * policy by recency takes `kept` away. Says where both are; each line is PID, what, address, bytes. Runs until its input ends.
 *
 * placed MIB_KEPT MIB_USED [fork|exec|threads|again|static] */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char table[16 << 20];

__attribute__((noinline)) static char *make_kept(size_t bytes)
{
	char *at = malloc(bytes);
	if (at)
		memset(at, 1, bytes);
	return at;
}

__attribute__((noinline)) static char *make_used(size_t bytes)
{
	char *at = malloc(bytes);
	if (at)
		memset(at, 2, bytes);
	return at;
}

static void say(const char *what, const void *at, size_t bytes)
{
	char line[128];
	int length = snprintf(line, sizeof line, "%d %s %lx %zu\n", getpid(), what, (unsigned long)at, bytes);
	if (write(1, line, length) != length)
		_exit(3);
}

static int over(void)
{
	struct pollfd in = {.fd = 0, .events = POLLIN};
	return poll(&in, 1, 0) != 0;
}

static void *work(void *argument)
{
	size_t *mib = argument, kept_bytes = mib[0] << 20, used_bytes = mib[1] << 20;
	char *kept = make_kept(kept_bytes), *used = make_used(used_bytes);
	if (!kept || !used)
		_exit(2);
	say("kept", kept, kept_bytes);
	say("used", used, used_bytes);
	long rounds = 0, sum = 0;
	do {
		for (size_t at = 0; at < used_bytes; at += 4096) {
			used[at]++;
			sum += used[at];
			if (at % (4 << 20) == 0 && over())
				break;
		}
		if (++rounds == 3)
			say("warm", used, used_bytes);
	} while (!over());
	/* What was placed keeps its content. */
	for (size_t at = 0; at < kept_bytes; at += 4096)
		if (kept[at] != 1)
			_exit(4);
	free(kept);
	free(used);
	return (void *)(sum & 0);
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 1;
	static size_t mib[2];
	mib[0] = strtoul(argv[1], NULL, 10);
	mib[1] = strtoul(argv[2], NULL, 10);
	const char *how = argc > 3 ? argv[3] : "";
	if (!strcmp(how, "exec")) {
		/* Another program in the same process: what the first had is gone. */
		if (!make_kept(mib[0] << 20))
			return 2;
		execl("/proc/self/exe", argv[0], argv[1], argv[2], (char *)NULL);
		return 5;
	}
	if (!strcmp(how, "fork")) {
		char *mine = make_kept(mib[0] << 20);
		say("parents", mine, mib[0] << 20);
		pid_t child = fork();
		if (child == 0) {
			work(mib);
			_exit(0);
		}
		int status;
		waitpid(child, &status, 0);
		return mine[0] == 1 && WIFEXITED(status) ? WEXITSTATUS(status) : 6;
	}
	if (!strcmp(how, "threads")) {
		pthread_t threads[2];
		for (int i = 0; i < 2; i++)
			pthread_create(&threads[i], NULL, work, mib);
		for (int i = 0; i < 2; i++)
			pthread_join(threads[i], NULL);
		return 0;
	}
	if (!strcmp(how, "again")) {
		/* Blocks that come and go and grow: what is undone with each is counted in the end. */
		char *at = NULL;
		for (int i = 0; i < 2000; i++) {
			at = make_kept(64 << 10);
			at = realloc(at, (64 << 10) + (i % 7) * 40000);
			if (!at || at[0] != 1)
				return 7;
			free(at);
		}
	}
	if (!strcmp(how, "static")) {
		memset(table, 3, sizeof table);
		say("table", table, sizeof table);
	}
	work(mib);
	return 0;
}
