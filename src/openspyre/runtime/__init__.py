"""Program -> launch."""
