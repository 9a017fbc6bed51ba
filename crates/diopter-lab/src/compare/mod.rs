//! Judges: paired ratios with their intervals, and the verdict about two recorded runs. Measures
//! nothing and renders nothing.
