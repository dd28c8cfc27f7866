//! Programs that read, pack, draw and copy.

use super::{Program, TEXT, TEXT_AND_TREE, TREE};

pub(super) const TOOLS: &[Program] = &[
    Program::line("sqlite3", "sqlite3", "exec sqlite3 rows.db").reads(
        r#"
pragma journal_mode = wal;
create table rows (id integer primary key, name text, size integer);
insert into rows with recursive n(i) as (select 1 union all select i + 1 from n where i < 250000) select i, hex(i * 7919 % 10007), i % 1000 from n;
create index names on rows (name);
select name, count(*), sum(size) from rows group by name order by 3 desc, 1 limit 3;
select count(*) from rows a join rows b on a.name = b.name and a.id < b.id where a.size < 20;
select nothing from rows;
delete from rows where size > 500;
vacuum;
"#,
    )
    .ends_with(1),
    // Its index has times and inode numbers, so that the repository is not compared.
    Program::line(
        "git",
        "git",
        r#"
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@localhost GIT_AUTHOR_DATE='2024-01-01T00:00:00Z'
export GIT_COMMITTER_NAME=c GIT_COMMITTER_EMAIL=c@localhost GIT_COMMITTER_DATE='2024-01-01T00:00:00Z'
git init -q -b main "$TMPDIR/repository" && cd "$TMPDIR/repository" || exit
cp -r "$INPUT/tree" .
for step in 1 2 3 4; do
    for file in tree/"$step"*/file.aaa; do cat "$INPUT/text" | head -n "$step"0000 >"$file"; done
    git add . && git commit -q -m "step $step" || exit
done
git gc -q
git log --stat --format=%H | cat
git fsck --no-progress
git checkout -q none"#,
    )
    .prepared(TEXT_AND_TREE)
    .ends_with(1),
    Program::line("sort", "coreutils", "exec sort --parallel=2 -S 16M -k 3,3 -k 1,1r -o sorted \"$INPUT/text\"").prepared(TEXT),
    Program::line("grep", "grep", "grep -c -E '(1a|2b).*f[0-9]{3} .*(c|d)4' \"$INPUT/text\"; head -n 20000 \"$INPUT/text\" | grep -c -E '([0-9a-f]{3}) .* [0-9a-f]\\1 '; exec grep nothing \"$INPUT/text\"")
        .prepared(TEXT)
        .ends_with(1),
    Program::line("rg", "ripgrep", "for i in 1 2 3 4 5; do rg -c -j 2 \"$i[0-9]\" \"$INPUT/tree\" | sort | cksum; done; exec rg -c '\\w+1a .*f\\d{3} ' \"$INPUT/text\"")
        .prepared(TEXT_AND_TREE),
    Program::line(
        "fd",
        "fd-find",
        "for i in 1 2 3 4 5 6 7 8; do fdfind -j 2 -t f \"a$\" \"$INPUT/tree\" | sort | cksum; done; fdfind -t f -e aab . \"$INPUT/tree\" -X cat | sort | cksum",
    )
    .probed("command -v fdfind")
    .prepared(TREE),
    Program::line("gzip", "gzip", "gzip -9 -n >text.gz && exec gzip -t text.gz").prepared(TEXT).reads_file("text"),
    Program::line("xz", "xz-utils", "xz -2 -T 2 --block-size=2MiB >text.xz && exec xz -t text.xz").prepared(TEXT).reads_file("text"),
    Program::line("zstd", "zstd", "zstd -q -6 -T2 >text.zst && exec zstd -q -t text.zst").prepared(TEXT).reads_file("text"),
    Program::line("bzip2", "bzip2", "bzip2 -9 >text.bz2 && exec bzip2 -t text.bz2").prepared(TEXT).reads_file("text"),
    Program::line("pigz", "pigz", "pigz -p 2 -n -9 >text.gz && exec pigz -t text.gz").prepared(TEXT).reads_file("text"),
    Program::line(
        "tar",
        "tar",
        r#"
tar -C "$INPUT" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf tree.tar tree text && tar -xf tree.tar && tar -tvf tree.tar | cksum
tar -xf nothing.tar"#,
    )
    .prepared(TEXT_AND_TREE)
    .ends_with(2),
    Program::line(
        "openssl",
        "openssl",
        r#"
openssl enc -aes-256-cbc -pbkdf2 -iter 300000 -S 0011223344556677 -pass pass:word -out text.enc
openssl enc -d -aes-256-cbc -pbkdf2 -iter 300000 -S 0011223344556677 -pass pass:word -in text.enc | openssl dgst -sha512
openssl prime -checks 40 170141183460469231731687303715884105727
exec openssl x509 -in text.enc -noout 2>/dev/null"#,
    )
    .prepared(TEXT)
    .reads_file("text")
    .ends_with(1),
    Program::line(
        "gpg",
        "gpg gpg-agent",
        r#"
gpg="gpg --batch --quiet --no-tty --pinentry-mode loopback --passphrase word"
mkdir -m 700 "$TMPDIR/.gnupg"
$gpg --s2k-count 16000000 -z 6 --symmetric -o "$TMPDIR/text.gpg" && $gpg -o text --decrypt "$TMPDIR/text.gpg"
gpg --print-md SHA512 <text
gpgconf --kill all"#,
    )
    .prepared(TEXT)
    .reads_file("text"),
    Program::line(
        "convert",
        "imagemagick",
        r#"
convert -size 400x300 gradient:red-blue -swirl 90 -blur 0x4 -resize 140% -rotate 7 picture.ppm
identify -format '%w %h %k\n' picture.ppm
exec convert nothing.png nothing.ppm"#,
    )
    .ends_with(1),
    Program::line(
        "ffmpeg",
        "ffmpeg",
        r#"
ffmpeg -nostdin -v error -f lavfi -i testsrc=size=640x360:rate=25:duration=8 -f lavfi -i sine=frequency=440:duration=8 \
    -c:v mpeg4 -q:v 4 -c:a ac3 -threads 2 -flags +bitexact -fflags +bitexact film.avi
exec ffmpeg -nostdin -v error -threads 2 -i film.avi -vf scale=320:180 -f framecrc -"#,
    ),
    Program::line("dot", "graphviz", "exec dot -Tsvg -o graph.svg").prepared(
        r#"
awk 'BEGIN {
    x = 1
    print "digraph made {"
    for (i = 0; i < 260; i++) { x = (x * 16807) % 2147483647; print "n" i % 130 " -> n" x % 130 ";" }
    print "}"
}' >graph.dot"#,
    )
    .reads_file("graph.dot"),
    Program::line("gnuplot", "gnuplot-nox", "exec gnuplot").reads(
        r#"
set terminal svg
set output "surface.svg"
set isosamples 150
set hidden3d
splot [-9:9] [-9:9] sin(sqrt(x * x + y * y)) / (1 + abs(x))
set terminal dumb
set output
plot sin(x)
"#,
    ),
    Program::line(
        "sox",
        "sox",
        r#"
sox -R -n -r 44100 -c 2 sweep.wav synth 40 sine 100-4000 reverb 60 gain -3 rate -v 48000
sox sweep.wav -n stat 2>&1"#,
    ),
    Program::line(
        "rsync",
        "rsync",
        r#"
rsync -a --checksum --stats "$INPUT/tree" "$INPUT/text" copy | grep -E '^(Number|Total)' | grep -v bytes
echo more >>copy/text
rsync -ai --checksum --no-whole-file "$INPUT/text" copy
exec rsync -a nothing copy"#,
    )
    .prepared(TEXT_AND_TREE)
    .ends_with(23),
    Program::line("make", "make", "exec make -s -j 2 -k -f \"$INPUT/Makefile\"")
        .prepared(
            r#"
cat >Makefile <<'end'
parts := $(shell seq 1 200)
all: whole broken
broken: whole
	exit 3
whole: $(parts:%=part.%)
	cat $^ | cksum
part.%:
	awk 'BEGIN { for (i = 0; i < 2000; i++) print i * $* }' >$@
end"#,
        )
        .ends_with(2),
];
