"""The software card: thin Python over the native library."""
