//! Names: directories of every form against readdir, symbolic links against readlink.
