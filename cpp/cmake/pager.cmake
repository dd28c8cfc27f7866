# The pager's targets: varve_pager (headers and what they need), varve_pager_warnings (for code of this repository).
# VARVE_SANITIZE=address|thread|undefined|address,undefined builds tests with that sanitizer.
include_guard(GLOBAL)
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()

find_package(Threads REQUIRED)
include(${CMAKE_CURRENT_LIST_DIR}/varve-pager-libraries.cmake)

add_library(varve_pager INTERFACE)
target_include_directories(varve_pager INTERFACE ${CMAKE_CURRENT_LIST_DIR}/../include)
target_compile_features(varve_pager INTERFACE cxx_std_20)
target_link_libraries(varve_pager INTERFACE Threads::Threads ${VARVE_PAGER_LIBRARIES})

add_library(varve_pager_warnings INTERFACE)
target_compile_options(varve_pager_warnings INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wpedantic -Wnon-virtual-dtor -Werror)
set(VARVE_SANITIZE "" CACHE STRING "Sanitizers for tests: address, thread, undefined")
if(VARVE_SANITIZE)
    target_compile_options(varve_pager_warnings INTERFACE -fsanitize=${VARVE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(varve_pager_warnings INTERFACE -fsanitize=${VARVE_SANITIZE})
endif()
