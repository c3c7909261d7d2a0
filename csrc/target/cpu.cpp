#include "cpu.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <string>
#include <thread>

#include "llama.h"

#if defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__linux__)
#include <sched.h>
#endif

namespace pd2 {

int32_t physical_cores() {
    int32_t cores = 0;
#if defined(__APPLE__)
    size_t size = sizeof(cores);
    // efficiency cores hold up every barrier of a graph
    if (sysctlbyname("hw.perflevel0.physicalcpu", &cores, &size, nullptr, 0) != 0) {
        sysctlbyname("hw.physicalcpu", &cores, &size, nullptr, 0);
    }
#elif defined(__linux__)
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) {
        std::set<std::string> siblings;  // one entry a core, as "0,4"
        for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
            std::string list;
            if (CPU_ISSET(cpu, &allowed)) {
                std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                                   "/topology/thread_siblings_list");
                siblings.insert(std::getline(file, list) ? list : std::to_string(cpu));
            }
        }
        cores = static_cast<int32_t>(siblings.size());
    }
#endif
    return cores > 0 ? cores : std::max(1, static_cast<int32_t>(std::thread::hardware_concurrency()));
}

const char * system_info() {
    return llama_print_system_info();
}

}  // namespace pd2
