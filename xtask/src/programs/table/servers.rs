//! Servers, each with its clients, and ways in which programs end.
//!
//! A server writes its log to a named pipe; the line that says that it is ready is the event that is waited for, and the end of the pipe
//! the server's end, however it came. All listen on Unix sockets only.

use super::Program;

pub(super) const SERVERS: &[Program] = &[
    Program::line(
        "redis",
        "redis-server redis-tools",
        r#"
cd "$TMPDIR" && mkfifo log || exit
redis-server --port 0 --unixsocket "$TMPDIR/socket" --save '' --appendonly no --io-threads 2 >log 2>&1 &
exec 3<log
while read -r line <&3; do case $line in *'ready to accept'*) break ;; esac; done
redis="redis-cli -s $TMPDIR/socket"
seq 1 60000 | awk '{ print "SET key:" $1 " " $1 * 7919; print "RPUSH list:" $1 % 100 " " $1 }' | $redis --pipe
redis-benchmark -s "$TMPDIR/socket" -q -n 30000 -c 8 -P 4 -t set,get,lpush >"$TMPDIR/times" || echo "the benchmark failed"
$redis dbsize
$redis get key:777
$redis llen mylist
$redis lrange list:7 0 4
$redis debug nothing
$redis bgsave >"$TMPDIR/said"
while read -r line <&3; do case $line in *'saving terminated with success'*) break ;; esac; done
$redis shutdown nosave
wait $!
echo "the server ended with $?""#,
    )
    .probed("command -v redis-server && command -v redis-cli && command -v redis-benchmark"),
    Program::line(
        "memcached",
        "memcached",
        r#"
mkfifo "$TMPDIR/log" || exit
memcached -vv -s "$TMPDIR/socket" -u "$(id -un)" -m 64 -t 2 >"$TMPDIR/log" 2>&1 &
server=$!
exec 3<"$TMPDIR/log"
while read -r line <&3; do case $line in *'server listening'*) break ;; esac; done
cat <&3 >"$TMPDIR/said" &
perl "$INPUT/client" "$TMPDIR/socket"
kill "$server"
wait "$server"
echo "the server ended with $?""#,
    )
    .prepared(CLIENT),
    // The program that was started ends at once, and what it forked goes on in a session of its own.
    Program::line(
        "daemon",
        "memcached",
        r#"
mkfifo "$TMPDIR/log" || exit
memcached -d -vv -s "$TMPDIR/socket" -P "$TMPDIR/pid" -u "$(id -un)" -m 64 -t 2 >"$TMPDIR/log" 2>&1 &
exec 3<"$TMPDIR/log"
wait $!
echo "the parent ended with $?"
while read -r line <&3; do case $line in *'server listening'*) break ;; esac; done
cat <&3 >"$TMPDIR/said" &
perl "$INPUT/client" "$TMPDIR/socket"
kill "$(cat "$TMPDIR/pid")"
wait $!
echo "the daemon is gone""#,
    )
    .probed("command -v memcached")
    .prepared(CLIENT),
    // It refuses to be root's: where root records, it is its own user's.
    Program::line(
        "postgres",
        "postgresql",
        r#"
PATH=$(echo /usr/lib/postgresql/*/bin):$PATH
as=
if [ "$(id -u)" = 0 ]; then
    as="setpriv --reuid=postgres --regid=postgres --clear-groups"
    chown postgres "$TMPDIR"
fi
data=$TMPDIR/data
$as initdb -D "$data" -U postgres -A trust --no-sync --locale=C >"$TMPDIR/said" || exit
$as pg_ctl -D "$data" -l "$data/log" -w -o "-k $TMPDIR -c listen_addresses=''" start >>"$TMPDIR/said" || exit
psql -h "$TMPDIR" -U postgres -X -q
echo "the client ended with $?"
$as pg_ctl -D "$data" -w -m fast stop"#,
    )
    .probed("command -v psql && ls /usr/lib/postgresql/*/bin/initdb")
    .reads(
        r#"
create table rows as select i, md5(i::text) as name, i % 1000 as size from generate_series(1, 200000) i;
create index on rows (name);
analyze rows;
select substr(name, 1, 2), count(*), sum(size) from rows group by 1 order by 3 desc, 1 limit 3;
select count(*) from rows a join rows b on a.name < b.name and a.size = b.size where a.size < 3;
select nothing from rows;
"#,
    ),
];

/// A client of memcached, which is in Perl because every Debian has that.
const CLIENT: &str = r#"
cat >client <<'end'
use strict;
use IO::Socket::UNIX;
my $server = IO::Socket::UNIX->new(Peer => shift) or die "cannot connect: $!";
my ($stored, $length) = (0, 0);
for my $i (1 .. 12000) {
    my $value = "v" x ($i % 2000);
    print $server "set k$i 0 0 ", length $value, "\r\n$value\r\n";
    $stored++ if <$server> =~ /^STORED/;
}
for my $i (1 .. 12000) {
    print $server "get k$i\r\n";
    while (<$server>) { last if /^END/; $length += length }
}
print "$stored stored, $length bytes read\n";
end"#;

pub(super) const ENDINGS: &[Program] = &[
    Program::line(
        "signal",
        "",
        "i=0; while [ $i -lt 400000 ]; do i=$((i + 1)); done; echo $i; kill -SEGV $$; echo 'still here'",
    )
    .probed("true")
    .ends_with(139),
    Program::line("abort", "", "ulimit -c 0; exec perl -e 'my @a = map { \"x\" x $_ } 1 .. 9000; print scalar(@a), \"\\n\"; require POSIX; $| = 1; print \"ends\\n\"; POSIX::abort()'")
        .probed("command -v perl")
        .ends_with(134),
    Program::line(
        "code",
        "",
        "(i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done; exit 5); echo $?; echo 'to standard error' >&2; exit 43",
    )
    .probed("true")
    .ends_with(43),
    Program::exec("absent", &["/nonexistent/program", "argument"])
        .probed("true")
        .ends_with(127),
    Program::exec("forbidden", &["/etc/passwd"])
        .probed("true")
        .ends_with(126),
];
