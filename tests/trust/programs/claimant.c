/*
 * Says that it is a fault handler and waits for what that gets it: claimant OVER [FOLDER]
 *
 * Says what came: "device", "closed", or "nothing" in minutes; and, when there is a file OVER, whether its niceness and its
 * cgroup are what they were.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define WHO 5ul
#define HELLO 4ul

static char *own_cgroup(char *text, int bytes)
{
	FILE *f = fopen("/proc/self/cgroup", "r");

	text[0] = 0;
	while (f && fgets(text, bytes, f) && strncmp(text, "0::", 3))
		;
	if (f)
		fclose(f);
	return text;
}

int main(int count, char **arguments)
{
	const char *folder = count > 2 ? arguments[2] : getenv("VARVE_PRELOAD_DIR");
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	unsigned long hello[4] = { 0 }, words[64], answer = HELLO;
	char control[64], before[512], after[512];
	struct iovec data = { words, sizeof(words) };
	/* A guard against hanging */
	struct timeval limit = { 250, 0 };
	const char *said = "closed";
	int nice = getpriority(PRIO_PROCESS, 0), s = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	ssize_t got;

	if (!folder || count < 2)
		return 2;
	own_cgroup(before, sizeof(before));
	snprintf(to.sun_path, sizeof(to.sun_path), "%s/s", folder);
	setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	if (connect(s, (struct sockaddr *)&to, sizeof(to))) {
		perror("connect");
		return 3;
	}
	memcpy(hello, "VARVECHN", 8);
	hello[1] = 1;
	hello[2] = 2;
	send(s, hello, sizeof(hello), MSG_NOSIGNAL);
	for (;;) {
		struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = control,
					  .msg_controllen = sizeof(control) };

		got = recvmsg(s, &message, 0);
		/* A wait with a limit ends where the process is held */
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && errno == EAGAIN)
			said = "nothing";
		if (got <= 0)
			break;
		if (message.msg_controllen) {
			said = "device";
			break;
		}
		if (words[0] == WHO) {
			said = "asked and closed";
			send(s, &answer, sizeof(answer), MSG_NOSIGNAL);
		}
	}
	printf("%s\n", said);
	fflush(stdout);
	/* The test may be gone */
	alarm(300);
	while (access(arguments[1], F_OK))
		usleep(1000);
	own_cgroup(after, sizeof(after));
	printf("%s, %s\n", getpriority(PRIO_PROCESS, 0) == nice ? "as nice" : "not as nice",
	       strcmp(before, after) ? "in another cgroup" : "in its cgroup");
	return 0;
}
