// A paging peer: lends this machine's memory, or a file, to spaces on other machines.
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "varve/pager/stores/file.hpp"
#include "varve/pager/stores/memory.hpp"
#include "varve/pager/stores/peer.hpp"

namespace {

int usage() {
    std::fprintf(stderr,
                 "usage: varve-pager-peer --mib N [--port N] [--file PATH] [--any]\n"
                 "Serves N MiB of memory, or of a file, on 127.0.0.1; with --any on every interface, unprotected.\n"
                 "One client at a time. Clients go on after a restart over the same file; over memory they fail.\n");
    return 2;
}

}  // namespace

int main(int count, char** values) try {
    unsigned long mib = 0;
    unsigned long port = 0;
    std::string file;
    bool loopback = true;
    for (int i = 1; i < count; ++i) {
        const std::string flag = values[i];
        if (flag == "--any") {
            loopback = false;
        } else if (i + 1 == count) {
            return usage();
        } else if (flag == "--mib") {
            mib = std::strtoul(values[++i], nullptr, 10);
        } else if (flag == "--port") {
            port = std::strtoul(values[++i], nullptr, 10);
        } else if (flag == "--file") {
            file = values[++i];
        } else {
            return usage();
        }
    }
    if (mib == 0 || port > 65535) {
        return usage();
    }
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, nullptr);
    const varve::byte_count capacity{mib << 20};
    auto content = file.empty() ? varve::pager::any_store(varve::pager::sparse_store(capacity))
                                : varve::pager::any_store(varve::pager::file_store(file, capacity));
    const varve::pager::paging_peer peer(std::move(content), capacity, static_cast<std::uint16_t>(port), loopback);
    std::printf("%u\n", static_cast<unsigned>(peer.port()));
    std::fflush(stdout);
    int signal = 0;
    sigwait(&ends, &signal);
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
}
