/*
 * Makes a folder anew and listens in it, as a recorder does: `impostor FOLDER`. Says what it hears, a line each, until it is
 * ended.
 */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static int place(const char *folder, const char *name, int kind)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	int s = socket(AF_UNIX, kind, 0);

	snprintf(at.sun_path, sizeof(at.sun_path), "%s/%s", folder, name);
	if (bind(s, (struct sockaddr *)&at, sizeof(at)) || chmod(at.sun_path, 0666))
		return -1;
	if (kind != SOCK_DGRAM && listen(s, 16))
		return -1;
	return s;
}

static void hear(int s)
{
	char words[64], control[64];
	struct iovec data = { words, sizeof(words) };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = control,
				  .msg_controllen = sizeof(control) };
	ssize_t got = recvmsg(s, &message, 0);

	if (got > 0)
		printf("heard %zd bytes%s\n", got, message.msg_controllen ? " and a descriptor" : "");
	else
		printf("heard nothing\n");
}

int main(int count, char **arguments)
{
	struct pollfd all[3] = { { .events = POLLIN }, { .events = POLLIN }, { .events = POLLIN } };

	if (count < 2 || mkdir(arguments[1], 0777) || chmod(arguments[1], 0777))
		return 2;
	setvbuf(stdout, 0, _IOLBF, 0);
	all[0].fd = place(arguments[1], "s", SOCK_SEQPACKET);
	/* What recorders listened to once. */
	all[1].fd = place(arguments[1], "writes", SOCK_DGRAM);
	all[2].fd = place(arguments[1], "traps", SOCK_DGRAM);
	if (all[0].fd < 0 || all[1].fd < 0 || all[2].fd < 0)
		return 3;
	printf("listening\n");
	for (;;) {
		if (poll(all, 3, -1) < 0)
			return 4;
		if (all[0].revents) {
			int s = accept(all[0].fd, 0, 0);

			hear(s);
			close(s);
		}
		for (int i = 1; i < 3; i++)
			if (all[i].revents)
				hear(all[i].fd);
	}
}
