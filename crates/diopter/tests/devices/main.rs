//! The tests on loop devices, file systems that they mount, and images, in one program. They need
//! root.

mod images;
mod images_ext;
mod images_xfs;
mod kernel;
