# What the user set on CMake's command line (CMAKE_ARGS), for llama.cpp's own build.

if(NOT DEFINED PYDFLASH2_GIVEN)  # a new build folder: its cache holds what was given, and nothing else yet
    get_cmake_property(names CACHE_VARIABLES)
    set(PYDFLASH2_GIVEN ${names} CACHE INTERNAL "Cache entries before project()")
endif()

# As the text of an initial cache file. Compilers, folders and what is ours alone are left out.
function(pd2_given_settings result)
    set(settings "")
    get_cmake_property(names CACHE_VARIABLES)
    foreach(name IN LISTS names)
        get_property(help CACHE ${name} PROPERTY HELPSTRING)
        get_property(type CACHE ${name} PROPERTY TYPE)
        # The help tells what came by a command line, a later one too; but since CMake 4 its own variables, such as
        # CMAKE_CUDA_ARCHITECTURES, have their usual help. scikit-build-core's settings have none: they name folders of
        # one build, and llama.cpp's archives would be kept for that alone.
        if((help MATCHES "specified on the command line" OR (name IN_LIST PYDFLASH2_GIVEN AND NOT help STREQUAL "")) AND
           NOT type MATCHES "^(INTERNAL|STATIC)$" AND
           NOT name MATCHES "^(PYDFLASH2|SKBUILD|PYTHON|Python)" AND
           NOT name MATCHES "^CMAKE_(INSTALL.*|BUILD_TYPE|MAKE_PROGRAM|C_COMPILER|CXX_COMPILER)$")
            string(REPLACE "UNINITIALIZED" "STRING" type ${type})
            string(APPEND settings "set(${name} [==[$CACHE{${name}}]==] CACHE ${type} \"\")\n")
        endif()
    endforeach()
    set(${result} "${settings}" PARENT_SCOPE)
endfunction()
