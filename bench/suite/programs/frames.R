# R: a data frame that is grouped, joined, ordered and fitted by least squares; each step makes new vectors.
#
# frames.R ROWS: prints sums that depend on the argument alone.
rows <- as.integer(commandArgs(trailingOnly = TRUE)[1])
set.seed(3)
left <- data.frame(key = sample.int(rows %/% 4L, rows, replace = TRUE), value = runif(rows), kind = sample(letters, rows, replace = TRUE))
means <- aggregate(value ~ kind, left, mean)
right <- data.frame(key = seq_len(rows %/% 4L), weight = runif(rows %/% 4L))
joined <- merge(left, right, by = "key")
joined <- joined[order(joined$kind, joined$value), ]
fit <- lm(value ~ weight + kind, joined)
cat(sprintf("%.10f %.10f %.10f\n", sum(means$value), sum(joined$weight * seq_len(nrow(joined))) / nrow(joined), sum(coef(fit))))
